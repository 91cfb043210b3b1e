"""Rewards of a server: samples are sent in batches over HTTP, and their scores come back."""

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

import httpx
from pydantic import Field
from tenacity import AsyncRetrying
from tenacity.wait import wait_exponential, wait_random

from learning.api.background_loop import run_coroutine
from learning.api.retries import LONGEST_WAIT, TransientFailure, may_pass, read_retry_after, retrying
from learning.data.rows import Row
from schemas.base import JsonObject
from schemas.errors import StepError

MAX_BYTES = 16 << 20
"""Limit of a response."""
SHOWN = 200
"""Characters of a server's words in messages."""
Count = Annotated[int, Field(ge=1, le=1024)]
Seconds = Annotated[float, Field(gt=0)]


def http(
    rows: list[Row],
    completions: list[str],
    *,
    url: Annotated[str, Field(pattern=r"^(https?://|\$\{env:)")],
    headers: dict[str, str] = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
    batch_size: Count = 64,
    max_concurrency: Count = 4,
    timeout: Seconds = 30.0,
    max_retries: Annotated[int, Field(ge=0, le=100)] = 5,
    backoff: Annotated[float, Field(ge=0)] = 1.0,
    version: str = "",
) -> list[float | None]:
    """Scores of a server: `url` gets `{"samples": [...]}` by POST and answers `{"scores": [...]}`; null: no score.

    A sample has `id`, `prompt` (messages), `completion`, `answer`, `family` and `metadata`; a score is a number in the
    order of the samples, or `{"id": …, "score": …}` in any order. A try ends after `timeout` seconds; lost connections
    and the statuses 408, 409, 425, 429 and 5xx are tried again, after `backoff` seconds that double each time.
    `version` says which reward the server computes; a new value lets finished steps run again.
    """
    del version  # part of the key only
    if not url.startswith(("http://", "https://")):
        raise StepError(f"reward servers.http: url must begin with http:// or https://, not {url.partition(':')[0]!r}")
    samples = [make_sample(i, row, text) for i, (row, text) in enumerate(zip(rows, completions, strict=True))]
    batches = [samples[start : start + batch_size] for start in range(0, len(samples), batch_size)]
    server = Server(url, headers, timeout, max_retries, backoff)
    scores = run_coroutine(server.score_all(batches, rows, max_concurrency))
    return [score for batch in scores for score in batch]


def make_sample(number: int, row: Row, completion: str) -> JsonObject:
    """Return what the server gets of a sample; `id` is its number in this call."""
    try:
        metadata = json.loads(row.get("metadata") or "{}")
    except ValueError:
        metadata = row.get("metadata")
    messages = [{"role": message["role"], "content": message.get("content")} for message in row["prompt"]]
    return {
        "id": number,
        "prompt": messages,
        "completion": completion,
        "answer": row.get("answer"),
        "family": row.get("family"),
        "metadata": metadata,
    }


class Server:
    """A reward server, with the limits of its use."""

    def __init__(self, url: str, headers: dict[str, str], timeout: float, max_retries: int, backoff: float) -> None:
        self.url, self.headers, self.timeout, self.max_retries = url, headers, timeout, max_retries
        self.backoff = backoff
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.shown = f"{parts.scheme}://{host}{parts.path}"
        """The address without a password and without a query, which may be secret."""

    async def score_all(
        self, batches: Sequence[Sequence[JsonObject]], rows: Sequence[Row], max_concurrency: int
    ) -> list[list[float | None]]:
        """Return the scores of every batch, in order. Raise StepError for the first one that has none."""
        places = asyncio.Semaphore(max_concurrency)
        # Following a redirect would send the headers, which may hold secrets, to another server.
        async with httpx.AsyncClient(headers=self.headers, timeout=None, follow_redirects=False) as client:

            async def score(batch: Sequence[JsonObject]) -> list[float | None]:
                async with places:
                    return await self.score_batch(client, batch, rows)

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(score(batch)) for batch in batches]
            except* StepError as failures:
                raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def score_batch(
        self, client: httpx.AsyncClient, batch: Sequence[JsonObject], rows: Sequence[Row]
    ) -> list[float | None]:
        """Return the scores of one batch. Raise StepError with the address and the row if there are none."""
        body = json.dumps({"samples": batch}).encode()
        where = f"rows {rows[batch[0]['id']].get('id')} to {rows[batch[-1]['id']].get('id')}"
        backoff = wait_exponential(multiplier=self.backoff, max=LONGEST_WAIT) + wait_random(0, self.backoff)
        again = AsyncRetrying(**retrying(self.max_retries, backoff))
        try:
            text = await again(self.post, client, body)
        except TransientFailure as error:
            raise StepError(
                f"reward server {self.shown}: no scores for {where} after {self.max_retries + 1} tries; "
                f"the last one: {error}"
            ) from None
        except Refused as error:
            raise StepError(f"reward server {self.shown}: {where}: {error}") from None
        return self.read_scores(text, batch, rows)

    async def post(self, client: httpx.AsyncClient, body: bytes) -> bytes:
        """Return the body of a response with status 200. Raise TransientFailure or Refused."""
        try:
            async with asyncio.timeout(self.timeout):
                content = {"Content-Type": "application/json"}
                async with client.stream("POST", self.url, content=body, headers=content) as response:
                    text = await _read(response)
        except TimeoutError:
            raise TransientFailure(f"no answer within {self.timeout:g} s") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise Refused(f"the address cannot be used: {error}") from None
        except httpx.HTTPError as error:
            raise TransientFailure(f"{type(error).__name__}: {error}"[:SHOWN]) from None
        if response.status_code == 200:
            return text
        words = text.decode(errors="replace").strip()[:SHOWN]
        message = f"status {response.status_code}: {words or response.reason_phrase}"
        if may_pass(response.status_code):
            raise TransientFailure(message, read_retry_after(response))
        raise Refused(message)

    def read_scores(self, text: bytes, batch: Sequence[JsonObject], rows: Sequence[Row]) -> list[float | None]:
        """Return one score per sample. Raise StepError for an answer that has not exactly one for each."""
        try:
            answer: Any = json.loads(text)
        except (ValueError, RecursionError):
            self._refuse(f"its answer is no JSON: {_shorten(text.decode(errors='replace'))}")
        scores = answer.get("scores", answer.get("rewards")) if isinstance(answer, dict) else answer
        if not isinstance(scores, list):
            self._refuse(f"its answer has no list `scores`: {_shorten(text.decode(errors='replace'))}")
        if len(scores) != len(batch):
            self._refuse(f"{len(scores)} scores for {len(batch)} samples")
        numbers = [sample["id"] for sample in batch]
        if any(isinstance(score, dict) for score in scores):
            scores = self._sort(scores, numbers)
        return [self._read_score(score, rows[number]) for score, number in zip(scores, numbers, strict=True)]

    def _sort(self, scores: list[Any], numbers: list[int]) -> list[Any]:
        """Return scores that name their samples in the order of the samples."""
        by_number: dict[int, Any] = {}
        for score in scores:
            number = score.get("id") if isinstance(score, dict) else None
            if not isinstance(number, int) or number not in numbers or number in by_number or "score" not in score:
                self._refuse(f'a score must be {{"id": …, "score": …}} with each id once, not {_shorten(score)}')
            by_number[number] = score["score"]
        return [by_number[number] for number in numbers]

    def _read_score(self, score: Any, row: Row) -> float | None:
        if score is None:
            return None
        # `float` of an integer beyond its range raises.
        is_number = isinstance(score, int | float) and abs(score) < 1e300
        if not is_number or not math.isfinite(score):
            self._refuse(f"row {row.get('id')}: the score is {_shorten(score)}, not a finite number")
        return float(score)

    def _refuse(self, message: str) -> NoReturn:
        raise StepError(f"reward server {self.shown}: {message}")


class Refused(Exception):
    """A failure that will not pass."""


async def _read(response: httpx.Response) -> bytes:
    """Return the body of a response. Raise Refused if it is too long."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > MAX_BYTES:
            raise Refused(f"its answer has more than {MAX_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _shorten(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
