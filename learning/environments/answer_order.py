"""The order in which the answers of an environment are used, so that runs can be reproducible."""

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from learning.environments.clock import Answer, Clock
from learning.environments.protocol import Outcome

Asker = TypeVar("Asker")


class PendingAnswers(Generic[Asker]):
    """Running steps, by number; `order` and `steps_per_answer` are those of `Episodes`."""

    def __init__(self, clock: Clock, order: Literal["each", "together"], steps_per_answer: int | None) -> None:
        self.clock, self.steps_per_answer = clock, steps_per_answer
        self.order: Literal["each", "together"] = order
        self.steps = self.numbers = 0
        self.under_way: dict[int, tuple[Asker, int]] = {}
        """The caller, and the decode step at which the answer is due."""
        self.ended: dict[int, Answer] = {}

    def __len__(self) -> int:
        return len(self.under_way)

    def ask(self, asker: Asker, step: Callable[[], Outcome]) -> None:
        """Start a step."""
        self.numbers += 1
        self.under_way[self.numbers] = (asker, self.steps + (self.steps_per_answer or 0))
        self.clock.submit(self.numbers, step)

    def tick(self) -> None:
        """Count a decode step."""
        self.steps += 1
        self.clock.tick()

    def take(self, *, idle: bool, live: bool, patience: float | None) -> list[tuple[Asker, Answer]]:
        """Return the answers that are due, with their callers, in the order of asking.

        `idle` means that nothing is decoded: wait for answers, at most `patience` seconds (None: without limit). `live`
        means that decode steps are not counted: do not wait.
        """
        if not self.under_way:
            return []
        self.collect(patience if idle and not live else 0.0)
        numbers = sorted(self.ended)
        if self.order == "together":
            numbers = numbers if idle and len(numbers) == len(self.under_way) else []
        elif not live and self.steps_per_answer is not None:
            numbers = self._list_due(idle, patience)
        return [(self.under_way.pop(number)[0], self.ended.pop(number)) for number in numbers]

    def _list_due(self, idle: bool, patience: float | None) -> list[int]:
        """Return the answers due by the count of decode steps; if nothing is decoded, those that are due next."""
        now = min(at for _, at in self.under_way.values()) if idle else self.steps
        due = sorted(number for number, (_, at) in self.under_way.items() if at <= now)
        while not self.ended.keys() >= set(due):
            if idle and patience is not None:
                return []
            self.collect(None)
        return due

    def collect(self, wait_s: float | None) -> None:
        """Record ended steps; wait up to `wait_s` seconds for the first one."""
        answers = self.clock.collect(wait_s)
        self.ended |= {answer.number: answer for answer in answers if answer.number in self.under_way}

    def forget(self) -> list[Asker]:
        """Drop all running steps, and return their callers."""
        waiting = [asker for asker, _ in self.under_way.values()]
        self.under_way, self.ended = {}, {}
        self.clock.forget()
        return waiting
