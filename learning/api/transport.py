"""One try of one question: sent, cut off when it takes too long, its answer read, its failure named."""

import asyncio
import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import openai
from pydantic import BaseModel, ValidationError

from learning.api.requests import CHAT, Answer, Question
from schemas.endpoint import Endpoint
from schemas.errors import StepError

SHOWN = 300
"""Characters of a server's words in messages."""
ROW_FAULTS = frozenset({400, 413, 422})
"""What the server will not do for this request, and never will."""
PASSING = frozenset({408, 409, 425, 429})
SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that no waiting cures."""


class TransientFailure(Exception):
    """A failure that may pass; `wait` is what the server asks for, in seconds."""

    def __init__(self, reason: str, said: str = "", wait: float = 0.0):
        super().__init__(f"{reason}: {said}" if said else reason)
        self.reason, self.said, self.wait = reason, said, wait


class Refused(Exception):
    """The server refuses the request for what it asks."""

    def __init__(self, reason: str, said: str):
        super().__init__(f"{reason}: {said}")
        self.reason, self.said = reason, said


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = 0


class _Message(BaseModel):
    content: str | None = None


class _Logprobs(BaseModel):
    token_logprobs: list[float] = []


class _Choice(BaseModel):
    finish_reason: str | None = None
    message: _Message | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Body(BaseModel):
    choices: list[_Choice]
    usage: _Usage | None = None


def make_client(endpoint: Endpoint) -> openai.AsyncOpenAI:
    """A client for one event loop, which sends once and does not try again by itself."""
    if not endpoint.base_url.startswith(("http://", "https://")):
        raise StepError(
            f"{describe_endpoint(endpoint)}: base_url is no address: it wants http:// or https:// at its start"
        )
    # What the environment says of an account at OpenAI is no business of other servers.
    nobody = {"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()}
    return openai.AsyncOpenAI(
        api_key=endpoint.api_key or "none", base_url=endpoint.base_url, max_retries=0, timeout=endpoint.timeout,
        default_headers=nobody,
    )  # fmt: skip


def describe_endpoint(endpoint: Endpoint) -> str:
    """How messages call an endpoint; its address may be a secret of its own."""
    return f"endpoint {endpoint.name} ({endpoint.model})" if endpoint.name else f"endpoint of {endpoint.model}"


async def attempt(client: openai.AsyncOpenAI, endpoint: Endpoint, question: Question, key: str) -> Answer:
    """The answer to one question. Raises Passing, Refused, and StepError for what concerns every request.

    Every try carries the same idempotency key, so that a server which knows such keys is paid once.
    """
    try:
        async with asyncio.timeout(endpoint.timeout):
            text = await _sent(client, question, question.asked_of(endpoint), f"posttrain-{key}")
    except (TimeoutError, openai.APITimeoutError):
        raise TransientFailure("timeout", f"no answer within {endpoint.timeout:g} s") from None
    except openai.APIStatusError as error:
        raise _classify_status(endpoint, error) from None
    except openai.APIConnectionError as error:
        raise TransientFailure("connection", f"{type(error.__cause__ or error).__name__}") from None
    return parse_response(text, question, endpoint)


async def _send(client: openai.AsyncOpenAI, question: Question, body: dict[str, Any], key: str) -> str:
    """The body of the response as it came."""
    # Everything goes as it is, also what the library does not know.
    how = {"model": body["model"], "extra_body": body, "extra_headers": {"Idempotency-Key": key}}
    if question.path == CHAT:
        raw = await client.chat.completions.with_raw_response.create(messages=body["messages"], **how)
    else:
        raw = await client.completions.with_raw_response.create(prompt=body["prompt"], **how)
    return raw.http_response.text


def parse_response(text: str, question: Question, endpoint: Endpoint) -> Answer:
    """The answer in the body of a response. Raises Passing for one that cannot be read."""
    try:
        body = _Body.model_validate_json(text)
        choice = body.choices[0]
    except (ValidationError, IndexError):
        raise TransientFailure("malformed", _shorten(text)) from None
    said = choice.message.content if choice.message is not None else choice.text
    if choice.message is None and choice.text is None:
        raise TransientFailure("malformed", _shorten(text))
    # Of a server that does not count, what is not exceeded is taken to be used.
    spent = (body.usage.prompt_tokens, body.usage.completion_tokens) if body.usage else question.bound(endpoint)
    logprobs = choice.logprobs.token_logprobs if choice.logprobs and question.path != CHAT else None
    return Answer(said or "", choice.finish_reason or "", *spent, choice.token_ids, logprobs)


def _classify_status(endpoint: Endpoint, error: openai.APIStatusError) -> Exception:
    status, said = error.status_code, _read_message(error.body, error.response)
    if status in ROW_FAULTS:
        return Refused(f"refused ({status})", said)
    code = error.body.get("code") if isinstance(error.body, dict) else None
    if (status not in PASSING and status < 500) or code in SPENT:
        return StepError(f"{describe_endpoint(endpoint)}: the server answers {status}: {said}")
    reason = "throttled" if status == 429 else f"status {status}"
    return TransientFailure(reason, said, _read_retry_after(error.response))


def _read_retry_after(response: Any) -> float:
    """Seconds that the server asks to wait; Retry-After is a number of them, or a date."""
    said = response.headers.get("retry-after", "")
    try:
        return max(0.0, float(said))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a zone
        return 0.0


def _read_message(body: Any, response: Any) -> str:
    """What a server says of a failure."""
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return _shorten(body["message"])
    return _shorten(json.dumps(body) if body else response.reason_phrase)


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
