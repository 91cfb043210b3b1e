"""What a client asks for: bodies of the OpenAI API read into our own words, everything else refused by name."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.serving.batch import Ask
from learning.texts.chat import encode_prompt
from schemas.errors import StepError

LARGEST_SEED = 2**63
WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "user": (), "metadata": (), "store": (), "safety_identifier": (), "service_tier": (), "prompt_cache_key": (),
}  # fmt: skip
"""Parameters that say something to a provider and nothing to a model: any value."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},), "best_of": (1,), "echo": (False,),
    "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "modalities": (["text"],),
    "response_format": ({"type": "text"},), "parallel_tool_calls": (True, False),
}  # fmt: skip
"""Parameters that this endpoint does not have, with the values that ask for nothing."""


class Refused(Exception):
    """A request that cannot be served, in the shape of OpenAI's errors."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class Body(BaseModel):
    """What both endpoints take."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    n: int | None = Field(default=1, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=1.0, ge=0, le=2)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, checked. Raises Refused."""
        found = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(found) > 4 or not all(found):
            raise Refused("stop: at most 4 strings, none of them empty", "stop")
        return found


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)


class TextBody(Body):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=5)


@dataclass(frozen=True)
class Asked:
    """A request, understood: `n` samples of every prompt."""

    model: str
    asks: tuple[Ask, ...]
    n: int
    stops: tuple[str, ...]
    stream: bool
    with_usage: bool
    """Whether a stream ends with the counts."""


def chat(body: Any, tokenizer: Any, max_length: int) -> Asked:
    """Read a chat request. Raises Refused."""
    read = _read(ChatBody, body)
    if read.top_logprobs is not None and not read.logprobs:
        raise Refused("top_logprobs needs logprobs: true", "top_logprobs")
    try:
        ids = encode_prompt(tokenizer, [_message(message, i) for i, message in enumerate(read.messages)])
    except StepError as error:
        raise Refused(str(error), "messages") from error
    limit = read.max_completion_tokens if read.max_completion_tokens is not None else read.max_tokens
    alternatives = (read.top_logprobs or 0) if read.logprobs else None
    return _asked(read, [ids], limit, alternatives, max_length, "messages")


def text(body: Any, tokenizer: Any, max_length: int) -> Asked:
    """Read a request for plain completions. Raises Refused."""
    read = _read(TextBody, body)
    prompts: list[Any] = [read.prompt] if isinstance(read.prompt, str) or _are_ids(read.prompt) else list(read.prompt)
    ids = [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
    known = len(tokenizer)
    if any(not 0 <= token < known for prompt in ids for token in prompt):
        raise Refused(f"prompt: a token id is not among the {known} of the model", "prompt")
    return _asked(read, ids, read.max_tokens or 16, read.logprobs, max_length, "prompt")


def _asked(
    read: Body, prompts: list[list[int]], limit: int | None, alternatives: int | None, max_length: int, param: str
) -> Asked:
    if not prompts or not all(prompts):
        raise Refused(f"{param}: empty", param)
    seed = secrets.randbelow(LARGEST_SEED) if read.seed is None else read.seed % LARGEST_SEED
    heat = 1.0 if read.temperature is None else read.temperature
    asks = []
    for ids in prompts:
        room = max_length - len(ids)
        if room < (limit or 1):
            wanted = f"{limit} for the completion" if limit else "room for a completion"
            said = f"the model holds {max_length} tokens; you asked for {len(ids)} in {param} and {wanted}"
            raise Refused(said, param, "context_length_exceeded")
        asks.append(Ask(tuple(ids), limit or room, seed, heat, read.top_p or 1.0, alternatives))
    with_usage = bool(read.stream_options and read.stream_options.include_usage)
    return Asked(read.model, tuple(asks), read.n or 1, read.stops, bool(read.stream), with_usage)


def _read(kind: type[Any], body: Any) -> Any:
    """A body as its schema. Raises Refused with the parameter that is wrong."""
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    kept = {}
    for name, value in body.items():
        if name in WITHOUT_EFFECT or (name in NEUTRAL and (value is None or value in NEUTRAL[name])):
            continue
        if name in NEUTRAL:
            raise Refused(f"{name} is not supported here", name, "unsupported_parameter")
        kept[name] = value
    try:
        return kind.model_validate(kept)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        if first["type"] == "extra_forbidden":
            where = ".".join(map(str, first["loc"]))
            raise Refused(f"unknown parameter: {where}", param, "unknown_parameter") from error
        raise Refused(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", param) from error


def _message(message: dict[str, Any], index: int) -> dict[str, str]:
    """A message of a role and a text. Raises Refused for tools, pictures and the like."""
    where = f"messages[{index}]"
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(message.get("role"), str) or not isinstance(content, str):
        raise Refused(f"{where}: a role and a content of text are wanted", "messages")
    if more := [k for k, v in message.items() if k not in ("role", "content", "name") and v not in (None, [])]:
        raise Refused(f"{where}.{more[0]} is not supported here", "messages", "unsupported_parameter")
    return {"role": message["role"], "content": content}


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(each, int) for each in prompt)
