"""Send many questions to one server: stored answers are reused, the rest is sent within the limits."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, suppress
from functools import lru_cache

from tenacity import AsyncRetrying, RetryCallState
from tenacity.wait import wait_exponential, wait_random

from learning.api.background_loop import run_coroutine
from learning.api.concurrency_limiter import Cap, SpendingLimiter
from learning.api.rate_limiter import RateLimiter
from learning.api.request_locks import RequestLocks
from learning.api.requests import Answer, Failed, Question, Responses
from learning.api.response_store import Paid, ResponseStore
from learning.api.response_writer import ResponseWriter
from learning.api.retries import retrying
from learning.api.spending import SpendingAccount
from learning.api.transport import FailedAttempt, Refused, attempt, describe_endpoint, make_client
from schemas.endpoint import Endpoint
from schemas.errors import StepError

BEAT = 0.5
"""Seconds between two polls for other processes' answers."""
BYTES_PER_TOKEN = 4
"""Estimate for ordinary text, to account tokens per minute before they are known."""


def ask(
    endpoint: Endpoint,
    account: SpendingAccount,
    questions: Sequence[Question],
    *,
    cap: Cap | None = None,
    on_answer: Callable[[int], None] = lambda done: None,
) -> Responses:
    """Return the answers to all questions, in their order; `on_answer` receives the number of finished questions.

    With a `cap` every answer counts, also a stored one, and questions beyond it are not asked. Without, raise StepError
    if the step would exceed its limit of paid tokens or money. Also raise StepError on a failure that concerns every
    request, or if more requests fail than the endpoint allows; answers received until then are stored.
    """
    with closing(ResponseStore(account.folder)) as answers, closing(RequestLocks(account.folder)) as claims:
        return run_coroutine(_Batch(endpoint, account, questions, answers, claims, cap, on_answer).ended())


@lru_cache(maxsize=64)
def get_rate_limiters(base_url: str, requests: float | None, tokens: float | None) -> tuple[RateLimiter, RateLimiter]:
    """Return the limiters of requests and tokens of a server, shared by all calls of this process."""
    return RateLimiter(requests), RateLimiter(tokens)


class _Batch:
    """One call of `ask`."""

    def __init__(
        self,
        endpoint: Endpoint,
        account: SpendingAccount,
        questions: Sequence[Question],
        answers: ResponseStore,
        claims: RequestLocks,
        cap: Cap | None,
        on_answer: Callable[[int], None],
    ):
        self.endpoint, self.account, self.questions = endpoint, account, questions
        self.answers, self.claims = answers, claims
        self.keeper, self.on_answer, self.done, self.failed = ResponseWriter(answers), on_answer, 0, 0
        self.asked = Responses([None] * len(questions), [False] * len(questions))
        self.keys = [question.key(endpoint) for question in questions]
        self.limiter = SpendingLimiter(endpoint, cap or Cap())
        own = Cap(account.max_tokens, account.max_cost, answers.spent(account.step)) if cap is None else Cap()
        self.own_limiter = SpendingLimiter(endpoint, own)
        self.pace, self.token_pace = get_rate_limiters(
            endpoint.base_url, endpoint.requests_per_minute, endpoint.tokens_per_minute
        )
        self.closed = False
        self.broken = asyncio.Event()
        self.wrong: Exception | None = None

    async def ended(self) -> Responses:
        """Ask until all questions have ended or one fails; then wait for running requests, so that they are stored."""
        self.known = self.answers.find(list(dict.fromkeys(self.keys)))
        self.under_way: dict[str, asyncio.Future[Answer | Failed]] = {}
        places, turn = iter(range(len(self.questions))), asyncio.Lock()
        workers = min(self.endpoint.max_concurrency, max(1, len(self.questions)))
        async with AsyncExitStack() as stack:
            # If all answers are stored, skip the connection and its delays.
            missing = any(key not in self.known for key in self.keys)
            self.client = await stack.enter_async_context(make_client(self.endpoint)) if missing else None
            await asyncio.gather(*(self._work(places, turn) for _ in range(workers)))
        if self.wrong is not None:
            raise self.wrong
        return self.asked

    async def _work(self, places: Iterator[int], turn: asyncio.Lock) -> None:
        while (place := await self._next(places, turn)) is not None:
            try:
                await self._settle(place)
            except Exception as error:
                self.wrong = self.wrong or error
                self.broken.set()

    async def _next(self, places: Iterator[int], turn: asyncio.Lock) -> int | None:
        """Return the index of the next question within the limits; None if there is none."""
        async with turn:
            place = None if self.closed or self.broken.is_set() else next(places, None)
            if place is not None and not await self.limiter.admit(self.questions[place]):
                self.closed, place = True, None
        return place

    async def _settle(self, place: int) -> None:
        """Answer one question from the store or by asking; equal questions of a batch are asked once."""
        key, question = self.keys[place], self.questions[place]
        answer: Answer | Failed | None = None
        try:
            if key in self.known:
                answer, self.asked.cached[place] = self.known[key], True
            elif key in self.under_way:
                answer = await self.under_way[key]
                self.asked.cached[place] = isinstance(answer, Answer)
            else:
                answer = await self._asked(place, question, key)
        finally:
            self.limiter.settle(question, answer if isinstance(answer, Answer) else None)
        self.asked.answers[place] = answer
        self.done += 1
        self.on_answer(self.done)

    async def _asked(self, place: int, question: Question, key: str) -> Answer | Failed:
        future = self.under_way[key] = asyncio.get_running_loop().create_future()
        answer: Answer | Failed = Failed("abandoned")
        try:
            answer = await self._claimed(place, question, key)
            if isinstance(answer, Answer):
                self.known[key] = answer
        finally:
            del self.under_way[key]
            future.set_result(answer)
        return answer

    async def _claimed(self, place: int, question: Question, key: str) -> Answer | Failed:
        """Return the answer of another process that is asking the same question, or else the server's."""
        while not self.claims.take(key):
            await self._doze(BEAT)
            self._check()
        try:
            stored = await asyncio.to_thread(self.answers.find, [key])
            self.asked.cached[place] = key in stored
            return stored[key] if stored else await self._paid(question, key)
        finally:
            self.claims.give_back(key)

    async def _paid(self, question: Question, key: str) -> Answer | Failed:
        """Return the server's answer after it has been stored on disk."""
        if not await self.own_limiter.admit(question):
            raise StepError(
                f"{describe_endpoint(self.endpoint)}: the stage's cap of {self.own_limiter.cap} is reached; raise "
                "`max_tokens_total` or `max_cost` and run again: paid answers are stored"
            )
        answer: Answer | None = None
        try:
            answer = await self._tried(question, key)
            price = self.endpoint.price
            cost = None if price is None else price.cost(answer.input_tokens, answer.output_tokens)
            paid = Paid(key, answer, self.account.step, self.endpoint.name, self.endpoint.model, cost)
            return await self.keeper.keep(paid)
        except Refused as error:
            return Failed(error.reason, error.message)
        except FailedAttempt as error:
            return self._given_up(error)
        finally:
            self.own_limiter.settle(question, answer)

    def _given_up(self, error: FailedAttempt) -> Failed:
        self.failed += 1
        if self.failed > self.endpoint.max_failed * len(self.questions):
            raise StepError(
                f"{describe_endpoint(self.endpoint)}: {self.failed} of {len(self.questions)} requests failed for good, "
                f"after {self.endpoint.max_retries + 1} tries each; the last one: {error}. Received answers are "
                "stored: run again to continue, or allow a share of failures with `max_failed`"
            ) from None
        return Failed(error.reason, error.message)

    async def _tried(self, question: Question, key: str) -> Answer:
        limits = self.endpoint
        backoff = wait_exponential(multiplier=limits.backoff, max=limits.max_backoff) + wait_random(0, limits.backoff)

        def note(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            if isinstance(error, FailedAttempt):
                self.asked.retries[error.reason] = self.asked.retries.get(error.reason, 0) + 1

        tries = retrying(limits.max_retries, backoff, math.inf)
        again = AsyncRetrying(**tries, before_sleep=note, sleep=self._doze)
        return await again(self._once, question, key)

    async def _once(self, question: Question, key: str) -> Answer:
        self._check()
        assert self.client is not None  # made because an answer is missing
        input_bound, output_bound = question.bound(self.endpoint)
        reckoned = input_bound / BYTES_PER_TOKEN + output_bound
        await self.pace.take()
        await self.token_pace.take(reckoned)
        used = 0
        try:
            answer = await attempt(self.client, self.endpoint, question, key)
            used = answer.input_tokens + answer.output_tokens
            return answer
        except FailedAttempt as error:
            if error.reason == "throttled":
                self.pace.bar(max(error.wait, self.endpoint.backoff))
            raise
        finally:
            self.token_pace.give_back(reckoned - used)

    def _check(self) -> None:
        if self.broken.is_set():
            raise StepError(f"{describe_endpoint(self.endpoint)}: not tried again because another request has failed")

    async def _doze(self, seconds: float) -> None:
        """Sleep, but wake up if another request fails for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.broken.wait()
