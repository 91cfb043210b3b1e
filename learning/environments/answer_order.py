"""Answers of an environment: which of those under way are taken when, and in which order."""

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from learning.environments.clock import Answer, Clock
from learning.environments.protocol import Outcome

Asker = TypeVar("Asker")


class PendingAnswers(Generic[Asker]):
    """Steps under way, by number; `order` and `steps_per_answer` are those of `Episodes`."""

    def __init__(self, clock: Clock, order: Literal["each", "together"], steps_per_answer: int | None) -> None:
        self.clock, self.order, self.steps_per_answer = clock, order, steps_per_answer
        self.steps = self.numbers = 0
        self.under_way: dict[int, tuple[Asker, int]] = {}
        """Who asked, and the decode step at which the answer is due."""
        self.there: dict[int, Answer] = {}

    def __len__(self) -> int:
        return len(self.under_way)

    def ask(self, one: Asker, step: Callable[[], Outcome]) -> None:
        """Have a step run."""
        self.numbers += 1
        self.under_way[self.numbers] = (one, self.steps + (self.steps_per_answer or 0))
        self.clock.submit(self.numbers, step)

    def tick(self) -> None:
        """A decode step has passed."""
        self.steps += 1
        self.clock.tick()

    def take(self, *, idle: bool, live: bool, patience: float | None) -> list[tuple[Asker, Answer]]:
        """Answers that are taken now, in the order of asking.

        `idle`: nothing is decoded, so that those there are to come are waited for, `patience` seconds at the most
        (None: as long as it takes). `live`: decode steps pass by themselves, uncounted, and nothing is waited for.
        """
        if not self.under_way:
            return []
        self.hear(patience if idle and not live else 0.0)
        numbers = sorted(self.there)
        if self.order == "together":
            numbers = numbers if idle and len(numbers) == len(self.under_way) else []
        elif not live and self.steps_per_answer is not None:
            numbers = self._counted(idle, patience)
        return [(self.under_way.pop(number)[0], self.there.pop(number)) for number in numbers]

    def _counted(self, idle: bool, patience: float | None) -> list[int]:
        """Those that are due by the count of decode steps; where nothing is decoded, those that are due next."""
        now = min(at for _, at in self.under_way.values()) if idle else self.steps
        due = sorted(number for number, (_, at) in self.under_way.items() if at <= now)
        while not self.there.keys() >= set(due):
            if idle and patience is not None:
                return []
            self.hear(None)
        return due

    def hear(self, wait_s: float | None) -> None:
        """Note what has ended; waits up to so many seconds for the first."""
        self.there |= {one.number: one for one in self.clock.collect(wait_s) if one.number in self.under_way}

    def forget(self) -> list[Asker]:
        """Whoever waits for an answer; nobody does any more."""
        waiting = [one for one, _ in self.under_way.values()]
        self.under_way, self.there = {}, {}
        self.clock.forget()
        return waiting
