"""A cap on tokens and money: a question is sent only if its upper bound still fits."""

import asyncio
from dataclasses import dataclass, field

from learning.api.requests import Answer, Question
from learning.api.response_store import Spent
from schemas.endpoint import Endpoint


@dataclass(frozen=True)
class Cap:
    """Limits on tokens and money of answers (None: no limit); `used` counts from the start."""

    max_tokens: int | None = None
    max_cost: float | None = None
    used: Spent = field(default_factory=Spent)

    def __str__(self) -> str:
        limits = ((self.max_tokens, "tokens"), (self.max_cost, "of money"))
        return " and ".join(f"{limit:,} {unit}" for limit, unit in limits if limit is not None)


class SpendingLimiter:
    """Admits questions in their order while their upper bounds fit under the cap.

    A question that does not fit waits for running ones, which usually take less than their bounds. So the first
    rejected question depends only on the answers, not on their order of arrival. If a server exceeds the bound of a
    question, the cap may be exceeded by that one answer.
    """

    def __init__(self, endpoint: Endpoint, cap: Cap):
        self.endpoint, self.cap = endpoint, cap
        self.tokens, self.cost = cap.used.tokens, cap.used.cost
        self.under_way, self.reserved_tokens, self.reserved_cost = 0, 0, 0.0
        self.turn, self.settled = asyncio.Lock(), asyncio.Event()

    async def admit(self, question: Question) -> bool:
        """Wait until the question fits and return True; return False if it never will, nor any later one."""
        tokens, cost = self._needs(*question.bound(self.endpoint))
        async with self.turn:
            while not self._fits(tokens, cost):
                if not self.under_way:
                    return False
                self.settled.clear()
                await self.settled.wait()
            self.under_way += 1
            self.reserved_tokens, self.reserved_cost = self.reserved_tokens + tokens, self.reserved_cost + cost
        return True

    def settle(self, question: Question, answer: Answer | None) -> None:
        """Replace the question's reservation by the answer's usage; without an answer by none."""
        tokens, cost = self._needs(*question.bound(self.endpoint))
        self.under_way -= 1
        # Reset to exactly 0, so that rounding errors of floats do not accumulate.
        self.reserved_tokens -= tokens
        self.reserved_cost = self.reserved_cost - cost if self.under_way else 0.0
        if answer is not None:
            tokens, cost = self._needs(answer.input_tokens, answer.output_tokens)
            self.tokens, self.cost = self.tokens + tokens, self.cost + cost
        self.settled.set()

    def _fits(self, tokens: int, cost: float) -> bool:
        most_tokens, most_cost = self.cap.max_tokens, self.cap.max_cost
        return (most_tokens is None or self.tokens + self.reserved_tokens + tokens <= most_tokens) and (
            most_cost is None or self.cost + self.reserved_cost + cost <= most_cost
        )

    def _needs(self, input_tokens: int, output_tokens: int) -> tuple[int, float]:
        price = self.endpoint.price
        return input_tokens + output_tokens, price.cost(input_tokens, output_tokens) if price else 0.0
