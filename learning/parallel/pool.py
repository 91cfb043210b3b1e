"""Workers of a role that keep no state: any of them can take any call, and repeat the call of one that died."""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from learning.parallel.actors import Actors, Factory, Lost
from schemas.errors import StepError

TRIES = 3
"""How often in a row workers may die before one of them has answered."""
AHEAD = 2
"""Questions that a worker has at a time: the one it works on, and the next."""


class Pool:
    """One object, made by `factory`, in every worker of a role. Any thread may ask."""

    def __init__(self, actors: Actors, role: str, factory: Factory, *args: Any) -> None:
        self.actors = actors
        self.lock = threading.Lock()
        self.remotes = actors.start(role, factory, *args)

    def map(self, method: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return a method's result for each of these arguments, in order. Raises StepError."""
        waiting, results, deaths = deque(range(len(asked))), {}, 0
        busy: dict[Future, tuple[int, int]] = {}
        loads = [0] * len(self.remotes)
        while len(results) < len(asked):
            while waiting and min(loads) < AHEAD:
                worker, place = loads.index(min(loads)), waiting.popleft()
                busy[self.remotes[worker].call(method, *asked[place])] = (worker, place)
                loads[worker] += 1
            done, _ = wait(busy, return_when=FIRST_COMPLETED)
            for answer in done:
                worker, place = busy.pop(answer)
                loads[worker] -= 1
                try:
                    results[place], deaths = answer.result(), 0
                except Lost as error:
                    waiting.appendleft(place)
                    deaths += self._revived(worker)
                    if deaths >= TRIES:
                        raise StepError(f"{error}; that was {TRIES} times in a row without an answer") from error
        return [results[place] for place in range(len(asked))]

    def _revived(self, worker: int) -> bool:
        """Restart a worker that has died; return False if another thread already did."""
        with self.lock:
            dead = not self.remotes[worker].alive()
            if dead:
                self.remotes[worker] = self.actors.restart(self.remotes[worker])
            return dead

    def close(self) -> None:
        """End the workers."""
        for remote in self.remotes:
            remote.stop()
