"""Virtual time: code that waits, and events that happen meanwhile."""

from collections.abc import Callable

import simpy


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.news = 0
        """Counts what waiting code might wait for."""

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.env.now

    def sleep(self, seconds: float) -> None:
        """Let time pass; what happens meanwhile happens."""
        if seconds > 0:
            self.env.run(until=self.env.now + seconds)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until something is so. Raises RuntimeError when nothing is left that could happen."""
        while not condition():
            seen = self.news
            while seen == self.news:
                if self.env.peek() == float("inf"):
                    raise RuntimeError("nothing is under way that could end")
                self.env.step()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something later."""
        self.env.timeout(seconds).callbacks.append(lambda _: what())
