"""Answers on their way to the disk: those that come while one commit is under way share the next."""

import asyncio

from learning.api.requests import Answer
from learning.api.response_store import Paid, ResponseStore


class ResponseWriter:
    """For one event loop, which goes on while a thread writes."""

    def __init__(self, answers: ResponseStore):
        self.answers = answers
        self.waiting: list[tuple[Paid, asyncio.Future[Answer]]] = []
        self.writer: asyncio.Task[None] | None = None

    async def keep(self, paid: Paid) -> Answer:
        """The answer as it is kept, once it is. Raises StepError."""
        kept = asyncio.get_running_loop().create_future()
        self.waiting.append((paid, kept))
        if self.writer is None:
            self.writer = asyncio.create_task(self._write())
        return await kept

    async def _write(self) -> None:
        while self.waiting:
            some, self.waiting = self.waiting, []
            try:
                answers = await asyncio.to_thread(self.answers.keep, [paid for paid, _ in some])
            except Exception as error:
                for _, kept in some:
                    kept.set_exception(error)
            else:
                for (_, kept), answer in zip(some, answers, strict=True):
                    kept.set_result(answer)
        self.writer = None
