"""Questions to a server, and its answers."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from learning.data.rows import replace_half_characters
from schemas.base import JsonObject
from schemas.endpoint import IDENTITY, Endpoint
from schemas.errors import StepError

CHAT, COMPLETIONS = "/chat/completions", "/completions"
MESSAGE_TOKENS = 64
"""Bound on the tokens that a chat template adds to a message."""


@dataclass(frozen=True)
class Question:
    """One request for one answer; `index` distinguishes equal requests."""

    path: str
    body: Mapping[str, Any]
    """The request as JSON, before the endpoint adds or removes fields."""
    index: int = 0
    about: str = ""
    """Further data that the answer depends on and that is not sent."""

    def make_body(self, endpoint: Endpoint) -> JsonObject:
        """Return the request as it is sent."""
        body = {"model": endpoint.model, **self.body, **endpoint.extra}
        return {key: value for key, value in body.items() if key not in endpoint.omit}

    def key(self, endpoint: Endpoint) -> str:
        """Return a digest of the question, without the way in which the server is reached."""
        who = {name: getattr(endpoint, name) for name in IDENTITY}
        identity = {"endpoint": who, "path": self.path, "body": self.body, "index": self.index}
        identity |= {"about": self.about} if self.about else {}
        return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def bound(self, endpoint: Endpoint) -> tuple[int, int]:
        """Return upper bounds on the tokens of prompt and answer: a token has at least one byte of text."""
        sent = self.make_body(endpoint)
        output = int(sent.get("max_completion_tokens") or sent.get("max_tokens") or 0)
        if "messages" in self.body:
            texts = [message["content"] for message in self.body["messages"]]
            return sum(len(text.encode()) + MESSAGE_TOKENS for text in texts), output
        prompt = self.body["prompt"]
        return len(prompt.encode() if isinstance(prompt, str) else prompt), output


@dataclass(frozen=True)
class Answer:
    """An answer of a server and its usage."""

    text: str
    finish: str
    """Finish reason of the server: `stop`, `length`, `content_filter`, ..."""
    input_tokens: int
    output_tokens: int
    token_ids: list[int] | None = None
    """Token ids of the answer, if requested and returned."""
    logprobs: list[float] | None = None
    """Log-probabilities of the answer's tokens, if requested and returned."""

    def dump(self) -> str:
        """Return the answer as JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Failed:
    """A question that failed for good; `reason` is short, as `refused (400)`, `message` the server's message."""

    reason: str
    message: str = ""


@dataclass
class Responses:
    """Answers in the order of the questions (None: not asked because of a cap), with their origin."""

    answers: list[Answer | Failed | None]
    cached: list[bool]
    """Whether an answer was already stored."""
    retries: dict[str, int] = field(default_factory=dict)
    """Retries by the reason of the failure before them."""


def load_answer(text: str) -> Answer:
    """Return an answer from JSON."""
    return Answer(**json.loads(text))


def make_chat_question(
    messages: Sequence[Mapping[str, str]], index: int, *, temperature: float, max_tokens: int
) -> Question:
    """Return a chat question; its index is also the seed, for servers that accept one."""
    if wrong := [message for message in messages if not isinstance(message["content"], str)]:
        raise StepError(f"endpoint: a message of role {wrong[0]['role']} has no text; drop the row")
    contents = [
        {"role": message["role"], "content": replace_half_characters(message["content"])} for message in messages
    ]
    body = {"messages": contents, "temperature": temperature, "max_tokens": max_tokens, "seed": index}
    return Question(CHAT, body, index)
