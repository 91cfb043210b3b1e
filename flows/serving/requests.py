"""Parse requests of the OpenAI API; an unsupported parameter is refused with its name."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from flows.serving.batch import PromptRequest
from flows.serving.refusals import Refused, quoted
from learning.data.chat import encode_prompt
from schemas.base import JsonObject
from schemas.chat import Chat
from schemas.errors import StepError

LARGEST_SEED = 2**63
MAX_CHOICES = 128
"""Most completions of a request: prompts times n."""
MAX_MESSAGES = 1024
MAX_TOKENS = 2**20
"""Most tokens in all completions of a request together."""
MAX_LOGPROBS = 2**17
"""Most log-probabilities in all completions of a request together."""
CHARACTERS_PER_TOKEN = 32
"""A prompt with more characters than this times the model's maximum length is refused before tokenisation."""
MAX_STOPS, MAX_STOP_LENGTH = 4, 256
ROLE = re.compile(r"[a-z_]{1,32}")
WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "user": (),
    "metadata": (),
    "store": (),
    "safety_identifier": (),
    "service_tier": (),
    "prompt_cache_key": (),
}
"""Parameters that are accepted and ignored, as they concern only a provider; an empty tuple allows any value."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True, False),
}
"""Unsupported parameters, with the values that have no effect and are accepted."""


MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class Body(BaseModel):
    """Parameters common to both endpoints."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    n: int | None = Field(default=1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=1.0, ge=0, le=2)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stop: Any = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings, checked. Raise Refused."""
        strings = [] if self.stop is None else [self.stop] if isinstance(self.stop, str) else self.stop
        if not isinstance(strings, list) or len(strings) > MAX_STOPS or not all(map(_is_stop, strings)):
            message = (
                f"stop: at most {MAX_STOPS} strings, none of them empty or longer than {MAX_STOP_LENGTH} characters"
            )
            raise Refused(message, "stop")
        return tuple(strings)


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: Annotated[list[JsonObject], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None


class TextBody(Body):
    """POST /v1/completions."""

    prompt: Any
    logprobs: int | None = Field(default=None, ge=0, le=5)


@dataclass(frozen=True)
class CompletionRequest:
    """A parsed request: `n` samples of every prompt."""

    model: str
    prompts: tuple[PromptRequest, ...]
    n: int
    stops: tuple[str, ...]
    stream: bool
    with_usage: bool
    """Whether a stream ends with the token counts."""


def read_chat(body: Any, tokenizer: Any, max_length: int) -> CompletionRequest:
    """Parse a chat request. Raise Refused."""
    read = _read_body(ChatBody, body)
    if read.top_logprobs is not None and not read.logprobs:
        raise Refused("top_logprobs needs logprobs: true", "top_logprobs")
    messages = [_check_message(message, i) for i, message in enumerate(read.messages)]
    row = _collect_template_settings(read, body)
    _check_characters(sum(map(_count_characters, (*messages, *row.values()))), max_length, "messages")
    try:
        ids = encode_prompt(tokenizer, messages, row)
    except StepError as error:
        raise Refused(str(error), "messages") from error
    limit = read.max_completion_tokens if read.max_completion_tokens is not None else read.max_tokens
    alternatives = (read.top_logprobs or 0) if read.logprobs else None
    return _check_request(read, [ids], limit, alternatives, max_length, "messages")


def read_text_request(body: Any, tokenizer: Any, max_length: int) -> CompletionRequest:
    """Parse a request for plain completions. Raise Refused."""
    read = _read_body(TextBody, body)
    prompts = _list_prompts(read.prompt)
    _check_choices(read, len(prompts))
    ids = (_encode_prompt(prompt, tokenizer, max_length) for prompt in prompts)
    return _check_request(read, ids, read.max_tokens or 16, read.logprobs, max_length, "prompt")


def _check_request(
    read: Body, prompts: Iterable[list[int]], limit: int | None, alternatives: int | None, max_length: int, param: str
) -> CompletionRequest:
    seed = secrets.randbelow(LARGEST_SEED) if read.seed is None else read.seed % LARGEST_SEED
    temperature = 1.0 if read.temperature is None else read.temperature
    requests = []
    for ids in prompts:
        if not ids:
            raise Refused(f"{param}: empty", param)
        room = max_length - len(ids)
        if room < (limit or 1):
            room_text = f"{limit} for the completion" if limit else "room for a completion"
            need = f"{len(ids)} for {param} and {room_text}"
            message = f"the context of the model is {max_length} tokens; the request needs {need}"
            raise Refused(message, param, "context_length_exceeded")
        requests.append(PromptRequest(tuple(ids), limit or room, seed, temperature, read.top_p or 1.0, alternatives))
    if not requests:
        raise Refused(f"{param}: empty", param)
    _check_answer(requests, read.n or 1, alternatives)
    with_usage = bool(read.stream_options and read.stream_options.include_usage)
    return CompletionRequest(read.model, tuple(requests), read.n or 1, read.stops, bool(read.stream), with_usage)


def _read_body(kind: type[Any], body: Any) -> Any:
    """Parse a body by its schema. Raise Refused with the parameter that is wrong."""
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    parameters = {}
    for name, value in body.items():
        if name in WITHOUT_EFFECT or (name in NEUTRAL and (value is None or value in NEUTRAL[name])):
            continue
        if name in NEUTRAL:
            raise Refused(f"{name} is not supported here", name, "unsupported_parameter")
        parameters[name] = value
    return validate_parameters(kind, parameters)


def validate_parameters(kind: type[Any], parameters: JsonObject) -> Any:
    """Return parameters as `kind`. Raise Refused with the one that is wrong."""
    try:
        return kind.model_validate(parameters)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        where = quoted(".".join(map(str, first["loc"])))
        if first["type"] == "extra_forbidden":
            raise Refused(f"unknown parameter: {where}", param, "unknown_parameter") from error
        raise Refused(f"{where}: {first['msg']}", param) from error


def _collect_template_settings(read: ChatBody, body: Any) -> JsonObject:
    """Return what the chat template receives besides messages. Raise Refused for a tool or an argument that is none."""
    try:
        chat = Chat(tools=read.tools or None, chat_template_kwargs=read.chat_template_kwargs or None)
    except ValidationError as error:
        param = "tools" if "`tools" in str(error) else "chat_template_kwargs"
        raise Refused(str(error.errors(include_url=False)[0]["msg"]), param) from error
    tools = None if body.get("tool_choice") == "none" else chat.tools
    settings = {"tools": tools, "chat_template_kwargs": chat.chat_template_kwargs}
    return {name: value for name, value in settings.items() if value}


def _count_characters(value: Any) -> int:
    """Return characters of all text in a JSON value."""
    if isinstance(value, dict):
        return sum(len(key) + _count_characters(item) for key, item in value.items())
    return sum(map(_count_characters, value)) if isinstance(value, list) else len(str(value))


def _check_message(message: JsonObject, index: int) -> JsonObject:
    """Return a message with a role, and a text or tool calls. Raise Refused for images and the like."""
    where = f"messages[{index}]"
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    role = message.get("role")
    calls = message.get("tool_calls") or []
    if calls and content is None:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        raise Refused(f"{where}: must have a role and a text content", "messages")
    if not ROLE.fullmatch(role):  # templates insert the role unescaped, even if it holds special tokens
        raise Refused(f"{where}: a role must consist of lower-case letters and underscores", "messages")
    if more := [k for k, v in message.items() if k not in MESSAGE_KEYS and v not in (None, [])]:
        raise Refused(f"{where}.{quoted(more[0])} is not supported here", "messages", "unsupported_parameter")
    extra = {"tool_calls": calls, "tool_call_id": message.get("tool_call_id")}
    if role == "tool":
        extra["name"] = message.get("name")
    return {"role": role, "content": content} | {key: value for key, value in extra.items() if value}


def _list_prompts(prompt: Any) -> list[Any]:
    """Return the prompts of a request for plain completions, texts or lists of token ids. Raise Refused."""
    if isinstance(prompt, str) or _are_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and (all(isinstance(each, str) for each in prompt) or all(map(_are_ids, prompt))):
        return prompt
    raise Refused("prompt: a text, a list of texts, a list of token ids or a list of such lists is required", "prompt")


def _encode_prompt(prompt: str | list[int], tokenizer: Any, max_length: int) -> list[int]:
    """Return the token ids of a prompt. Raise Refused."""
    if isinstance(prompt, str):
        _check_characters(len(prompt), max_length, "prompt")
        return tokenizer.encode(prompt)
    size = len(tokenizer)
    if not all(0 <= token < size for token in prompt):
        raise Refused(f"prompt: a token id is not among the {size} of the model", "prompt")
    return prompt


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(each) is int for each in prompt)


def _is_stop(word: Any) -> bool:
    return isinstance(word, str) and 0 < len(word) <= MAX_STOP_LENGTH


def _check_choices(read: Body, prompts: int) -> None:
    if prompts * (read.n or 1) > MAX_CHOICES:
        message = f"{prompts} prompts with {read.n or 1} completions each are more than {MAX_CHOICES} completions"
        raise Refused(f"{message}; split it into several requests", "prompt")


def _check_characters(count: int, max_length: int, param: str) -> None:
    """Raise Refused for a prompt that is certainly too long, before it is tokenised."""
    if count > CHARACTERS_PER_TOKEN * max_length:
        message = (
            f"the model holds {max_length} tokens; {param} of {count} characters, more than {CHARACTERS_PER_TOKEN} "
            "for each of them, are not read"
        )
        raise Refused(message, param, "context_length_exceeded")


def _check_answer(requests: list[PromptRequest], n: int, alternatives: int | None) -> None:
    """Raise Refused if the response would not fit into memory."""
    tokens = n * sum(request.max_tokens for request in requests)
    if tokens > MAX_TOKENS:
        message = f"the completions may have {tokens} tokens together, more than {MAX_TOKENS}; lower n or max_tokens"
        raise Refused(message, "max_tokens")
    if alternatives is not None and tokens * (1 + alternatives) > MAX_LOGPROBS:
        message = f"{tokens} tokens with {1 + alternatives} log-probabilities each are more than {MAX_LOGPROBS}"
        raise Refused(f"{message}; lower n, max_tokens or top_logprobs", "max_tokens")
