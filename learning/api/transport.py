"""One try of one question: sent, cut off when it takes too long, its answer read, its failure named."""

import asyncio
import json
from typing import Any

import openai
from pydantic import BaseModel, ValidationError

from learning.api.requests import CHAT, Answer, Question
from learning.api.retries import TransientFailure, may_pass, read_retry_after
from schemas.base import JsonObject
from schemas.endpoint import Endpoint
from schemas.errors import StepError

SHOWN = 300
"""Characters of a server's words in messages."""
ROW_FAULTS = frozenset({400, 413, 422})
"""What the server will not do for this request, and never will."""
SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that no waiting cures."""


class FailedAttempt(TransientFailure):
    """A failure that may pass, with its reason and what the server says about it."""

    def __init__(self, reason: str, message: str = "", wait: float = 0.0):
        super().__init__(f"{reason}: {message}" if message else reason, wait)
        self.reason, self.message = reason, message


class Refused(Exception):
    """The server refuses the request because of its content."""

    def __init__(self, reason: str, message: str):
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


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
    """Return a client for one event loop, without retries of its own."""
    if not endpoint.base_url.startswith(("http://", "https://")):
        raise StepError(f"{describe_endpoint(endpoint)}: base_url must begin with http:// or https://")
    # Do not send the OpenAI account of the environment to other servers.
    omitted: Any = {"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()}
    return openai.AsyncOpenAI(
        api_key=endpoint.api_key or "none",
        base_url=endpoint.base_url,
        max_retries=0,
        timeout=endpoint.timeout,
        default_headers=omitted,
    )


def describe_endpoint(endpoint: Endpoint) -> str:
    """Return the name of an endpoint for messages, without its address, which may be secret."""
    return f"endpoint {endpoint.name} ({endpoint.model})" if endpoint.name else f"endpoint of {endpoint.model}"


async def attempt(client: openai.AsyncOpenAI, endpoint: Endpoint, question: Question, key: str) -> Answer:
    """Return the answer to one question; raise FailedAttempt, Refused, or StepError if all requests would fail.

    Every attempt sends the same idempotency key, so that a server with such keys is paid once.
    """
    try:
        async with asyncio.timeout(endpoint.timeout):
            text = await _send(client, question, question.make_body(endpoint), f"posttrain-{key}")
    except (TimeoutError, openai.APITimeoutError):
        raise FailedAttempt("timeout", f"no answer within {endpoint.timeout:g} s") from None
    except openai.APIStatusError as error:
        raise _classify_status(endpoint, error) from None
    except openai.APIConnectionError as error:
        raise FailedAttempt("connection", f"{type(error.__cause__ or error).__name__}") from None
    return parse_response(text, question, endpoint)


async def _send(client: openai.AsyncOpenAI, question: Question, body: JsonObject, key: str) -> str:
    """Send a question and return the body of the response."""
    # The body is sent unchanged, also fields that the library does not know.
    how = {"model": body["model"], "extra_body": body, "extra_headers": {"Idempotency-Key": key}}
    if question.path == CHAT:
        raw = await client.chat.completions.with_raw_response.create(messages=body["messages"], **how)
    else:
        raw = await client.completions.with_raw_response.create(prompt=body["prompt"], **how)
    return raw.http_response.text


def parse_response(text: str, question: Question, endpoint: Endpoint) -> Answer:
    """Return the answer in the body of a response; raise FailedAttempt if it cannot be parsed."""
    try:
        body = _Body.model_validate_json(text)
        choice = body.choices[0]
    except (ValidationError, IndexError):
        raise FailedAttempt("malformed", _shorten(text)) from None
    text_of_choice = choice.message.content if choice.message is not None else choice.text
    if choice.message is None and choice.text is None:
        raise FailedAttempt("malformed", _shorten(text))
    # For a server that reports no usage, count the upper bounds.
    spent = (body.usage.prompt_tokens, body.usage.completion_tokens) if body.usage else question.bound(endpoint)
    logprobs = choice.logprobs.token_logprobs if choice.logprobs and question.path != CHAT else None
    return Answer(text_of_choice or "", choice.finish_reason or "", *spent, choice.token_ids, logprobs)


def _classify_status(endpoint: Endpoint, error: openai.APIStatusError) -> Exception:
    status, message = error.status_code, _read_message(error.body, error.response)
    if status in ROW_FAULTS:
        return Refused(f"refused ({status})", message)
    code = error.body.get("code") if isinstance(error.body, dict) else None
    if not may_pass(status) or code in SPENT:
        return StepError(f"{describe_endpoint(endpoint)}: the server answers {status}: {message}")
    reason = "throttled" if status == 429 else f"status {status}"
    return FailedAttempt(reason, message, read_retry_after(error.response))


def _read_message(body: Any, response: Any) -> str:
    """Return the server's message about a failure."""
    if isinstance(body, dict) and isinstance(body.get("message"), str):
        return _shorten(body["message"])
    return _shorten(json.dumps(body) if body else response.reason_phrase)


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
