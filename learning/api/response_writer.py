"""Write answers to disk: those that arrive during a commit share the next one."""

import asyncio

from learning.api.requests import Answer
from learning.api.response_store import Paid, ResponseStore


class ResponseWriter:
    """Writes the answers of one event loop in a thread."""

    def __init__(self, answers: ResponseStore):
        self.answers = answers
        self.waiting: list[tuple[Paid, asyncio.Future[Answer]]] = []
        self.writer: asyncio.Task[None] | None = None

    async def keep(self, paid: Paid) -> Answer:
        """Return the answer when it has been stored, as stored; raise StepError if it cannot be."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((paid, future))
        if self.writer is None:
            self.writer = asyncio.create_task(self._write())
        return await future

    async def _write(self) -> None:
        while self.waiting:
            batch, self.waiting = self.waiting, []
            try:
                answers = await asyncio.to_thread(self.answers.keep, [paid for paid, _ in batch])
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), answer in zip(batch, answers, strict=True):
                    future.set_result(answer)
        self.writer = None
