"""What is asked of a server, and what comes back."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from learning.data.text_edits import replace_half_characters
from schemas.endpoint import IDENTITY, Endpoint

CHAT, COMPLETIONS = "/chat/completions", "/completions"
MESSAGE_TOKENS = 64
"""Tokens that a chat template may add to a message; a part of the bound on a prompt's tokens."""


@dataclass(frozen=True)
class Question:
    """One request for one answer; `index` tells apart those that are otherwise equal."""

    path: str
    body: Mapping[str, Any]
    """The request as JSON, but for what the endpoint adds and leaves out."""
    index: int = 0
    about: str = ""
    """What else the answer hangs on and the server is not told."""

    def asked_of(self, endpoint: Endpoint) -> dict[str, Any]:
        """The request as it is sent."""
        body = {"model": endpoint.model, **self.body, **endpoint.extra}
        return {key: value for key, value in body.items() if key not in endpoint.omit}

    def key(self, endpoint: Endpoint) -> str:
        """Digest of everything that says what is asked; how the server is reached is no part of it."""
        who = {name: getattr(endpoint, name) for name in IDENTITY}
        said = {"endpoint": who, "path": self.path, "body": self.body, "index": self.index}
        said |= {"about": self.about} if self.about else {}
        return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def bound(self, endpoint: Endpoint) -> tuple[int, int]:
        """Tokens of prompt and answer that are not exceeded: a token stands for at least one byte of text."""
        sent = self.asked_of(endpoint)
        output = int(sent.get("max_completion_tokens") or sent.get("max_tokens") or 0)
        if "messages" in self.body:
            texts = [message["content"] for message in self.body["messages"]]
            return sum(len(text.encode()) + MESSAGE_TOKENS for text in texts), output
        prompt = self.body["prompt"]
        return len(prompt.encode() if isinstance(prompt, str) else prompt), output


@dataclass(frozen=True)
class Answer:
    """What a server said, and what it took."""

    text: str
    finish: str
    """The server's word: `stop`, `length`, `content_filter`, ..."""
    input_tokens: int
    output_tokens: int
    token_ids: list[int] | None = None
    """Where they were asked for and the server gives them."""
    logprobs: list[float] | None = None
    """Likewise; of the answer's tokens."""

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Failed:
    """A question without an answer for good; `reason` is short, as `refused (400)`, `said` the server's words."""

    reason: str
    said: str = ""


@dataclass
class Responses:
    """Answers in the order of the questions (None: not asked, because a cap was reached), and how they came about."""

    answers: list[Answer | Failed | None]
    cached: list[bool]
    """Whether an answer was there already."""
    retries: dict[str, int] = field(default_factory=dict)
    """Further tries by the reason of the failure before them."""


def load_answer(text: str) -> Answer:
    """From JSON."""
    return Answer(**json.loads(text))


def make_chat_question(
    messages: Sequence[Mapping[str, str]], index: int, *, temperature: float, max_tokens: int
) -> Question:
    """A question in messages; its index is also the seed, for servers that take one."""
    said = [{"role": message["role"], "content": replace_half_characters(message["content"])} for message in messages]
    body = {"messages": said, "temperature": temperature, "max_tokens": max_tokens, "seed": index}
    return Question(CHAT, body, index)
