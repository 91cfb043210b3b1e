"""What a step that asks remote models needs: its desk, and telling what they cost."""

from collections.abc import Callable

from learning.api.response_store import FILE, ResponseStore, Spent
from learning.api.spending import SpendingAccount
from tasks.context import Context

EVERY = 20
"""Answers between looks at what was spent."""


def spending(context: Context, engine: object) -> Callable[[int], None]:
    """What hears of sampled tokens: nobody, where a server charges for them and `Bills` tells."""
    return (lambda tokens: None) if getattr(engine, "charges", False) else context.spend


def desk_of(context: Context, max_tokens: int | None = None, max_cost: float | None = None) -> SpendingAccount:
    """Where a step's questions go through; the limits are on what it pays."""
    return SpendingAccount(context.remote or context.checkpoints.parent / "remote", context.key, max_tokens, max_cost)


class Bills:
    """Tells what a step has paid to servers since it was last asked, whichever of its processes paid."""

    def __init__(self, context: Context, desk: SpendingAccount):
        self.context, self.desk = context, desk
        self.told = self._spent()

    def tell(self, speaks: bool = True) -> None:
        """Count what is new against the budget; only one of several processes `speaks` for the step."""
        if not speaks:
            return
        now = self._spent()
        new, self.told = now - self.told, now
        if new.tokens > new.charged:
            self.context.spend(new.tokens - new.charged)
        if new.charged:
            self.context.spend(new.charged, new.cost)

    def _spent(self) -> Spent:
        if not (self.desk.folder / FILE).is_file():
            return Spent()
        answers = ResponseStore(self.desk.folder)
        try:
            return answers.spent(self.desk.step)
        finally:
            answers.close()
