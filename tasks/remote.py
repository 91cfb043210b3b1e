"""The account of a step's remote requests, and the reports of their cost."""

from collections.abc import Callable

from learning.api.response_store import FILE, ResponseStore, Spent
from learning.api.spending import SpendingAccount
from tasks.context import Amounts, Context

ANSWERS_PER_REPORT = 20
"""Answers between two reports of spending."""


def choose_spend(context: Context, engine: object) -> Callable[[int], None]:
    """Return the function that counts sampled tokens; it does nothing if a server charges: see `SpendingReporter`."""
    return (lambda tokens: None) if getattr(engine, "charges", False) else context.spend


def recall_tokens(context: Context, engine: object, tokens: int) -> None:
    """Count the tokens of earlier attempts in a journal; a server's are counted in its account."""
    if not getattr(engine, "charges", False):
        context.recall(tokens)


def open_account(context: Context, max_tokens: int | None = None, max_cost: float | None = None) -> SpendingAccount:
    """Return the account of a step's remote requests; the limits apply to what it pays."""
    return SpendingAccount(context.remote or context.checkpoints.parent / "remote", context.key, max_tokens, max_cost)


class SpendingReporter:
    """Reports to the context what the processes of a step have paid to servers since the last report."""

    def __init__(self, context: Context, account: SpendingAccount):
        self.context, self.account = context, account
        self.reported = self._read_spent()
        context.spending.served_before = Amounts(
            tokens=self.reported.tokens, paid=self.reported.cost, paid_tokens=self.reported.charged
        )

    def report(self, is_main: bool = True) -> None:
        """Count new spending against the budget; of several processes only the main one reports."""
        if not is_main:
            return
        spent = self._read_spent()
        new, self.reported = spent - self.reported, spent
        if new.tokens > new.charged:
            self.context.spend_served(new.tokens - new.charged)
        if new.charged:
            self.context.spend_served(new.charged, new.cost)

    def _read_spent(self) -> Spent:
        if not (self.account.folder / FILE).is_file():
            return Spent()
        answers = ResponseStore(self.account.folder)
        try:
            return answers.spent(self.account.step)
        finally:
            answers.close()
