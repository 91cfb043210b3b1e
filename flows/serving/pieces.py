"""Passes pieces from the engine's thread to the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from flows.serving.requests import CompletionRequest
from flows.serving.worker import Piece, ServingJob, Worker

LOOK = 1.0
"""Seconds between checks whether the client is still connected."""
TIMED_OUT = "the answer was not complete within"


async def stream_pieces(
    understood: CompletionRequest, worker: Worker, until: float
) -> AsyncGenerator[tuple[int, Piece | None]]:
    """Yield pieces with the index of their choice until all have ended; yield None about once per second.

    Raise TimeoutError at the time `until` of the loop, and what the engine raised.
    """
    received: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def receiver(first: int) -> Callable[[Piece | Exception], None]:
        def receive(piece: Piece | Exception) -> None:
            index = first + (piece.sample if isinstance(piece, Piece) else 0)
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(received.put_nowait, (index, piece))

        return receive

    n = understood.n
    jobs = [ServingJob(request, n, understood.stops, receiver(i * n)) for i, request in enumerate(understood.prompts)]
    left = n * len(jobs)
    look = loop.time() + LOOK
    try:
        for job in jobs:
            worker.submit(job)
        while left:
            now = loop.time()
            if now >= until:
                raise TimeoutError
            if now >= look:
                look = now + LOOK
                yield 0, None
            try:
                async with asyncio.timeout_at(min(look, until)):
                    index, piece = await received.get()
            except TimeoutError:
                continue
            if isinstance(piece, Exception):
                raise piece
            left -= piece.finish is not None
            yield index, piece
    finally:
        for job in jobs:
            job.left = True
