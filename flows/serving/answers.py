"""Responses in the format of the OpenAI API: complete ones, and the chunks of a stream."""

import json
import secrets
import time
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypedDict

from flows.serving.batch import Token
from flows.serving.requests import CompletionRequest
from flows.serving.worker import Finish, Piece


@dataclass
class Choice:
    """One completion, as far as it is generated."""

    index: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    made: int = 0
    finish: Finish | None = None
    offset: int = 0
    """Characters of the tokens that a stream has sent."""

    def take(self, piece: Piece, with_tokens: bool) -> None:
        """Add new text; add tokens only if their log-probabilities are requested."""
        self.text, self.made, self.finish = self.text + piece.text, piece.made, piece.finish
        if with_tokens:
            self.tokens += piece.tokens


class Chat:
    """The format of the chat endpoint."""

    object_type, chunk_type, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def choice(self, choice: Choice, tokenizer: Any, with_logprobs: bool) -> dict[str, object]:
        """Return a finished choice."""
        logprobs = {"content": self._logprobs(choice.tokens, tokenizer), "refusal": None} if with_logprobs else None
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}

    def first(self, index: int) -> dict[str, object] | None:
        """Return the first chunk of a stream."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, choice: Choice, piece: Piece, tokenizer: Any, with_logprobs: bool) -> dict[str, object]:
        """Return the new part of a choice."""
        logprobs = {"content": self._logprobs(piece.tokens, tokenizer)} if with_logprobs and piece.tokens else None
        delta = {"content": piece.text} if piece.text else {}
        return {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": piece.finish}

    def _logprobs(self, tokens: Any, tokenizer: Any) -> list[dict[str, object]]:
        return [
            _show_token(tokenizer, t.id, t.logprob)
            | {"top_logprobs": [_show_token(tokenizer, *other) for other in t.others]}
            for t in tokens
        ]


class PlainLogprobs(TypedDict):
    """Log-probabilities in the format of the completions endpoint."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Plain:
    """The format of the completions endpoint."""

    object_type, chunk_type, prefix = "text_completion", "text_completion", "cmpl-"

    def choice(self, choice: Choice, tokenizer: Any, with_logprobs: bool) -> dict[str, object]:
        """Return a finished choice."""
        logprobs = self._logprobs(choice.tokens, tokenizer, 0) if with_logprobs else None
        return {"index": choice.index, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish}

    def first(self, index: int) -> dict[str, object] | None:
        """Return None: a stream begins with its first text."""
        return None

    def piece(self, choice: Choice, piece: Piece, tokenizer: Any, with_logprobs: bool) -> dict[str, object]:
        """Return the new part of a choice."""
        logprobs = self._logprobs(piece.tokens, tokenizer, choice.offset) if with_logprobs and piece.tokens else None
        if logprobs is not None:
            choice.offset += sum(map(len, logprobs["tokens"]))
        return {"index": choice.index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish}

    def _logprobs(self, tokens: Any, tokenizer: Any, offset: int) -> PlainLogprobs:
        words = [_decode_token(tokenizer, token.id) for token in tokens]
        starts = list(accumulate(map(len, words[:-1]), initial=offset)) if words else []
        best = [{_decode_token(tokenizer, i): logprob for i, logprob in token.others} for token in tokens]
        return {
            "tokens": words,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": best,
            "text_offset": starts,
        }


class Answer:
    """One response in progress: its id, its time, its counts."""

    def __init__(
        self, request: CompletionRequest, words: Chat | Plain, fingerprint: str, tokenizer: Any, response: str
    ):
        self.request, self.words, self.tokenizer = request, words, tokenizer
        self.with_logprobs = request.prompts[0].alternatives is not None
        self.choices = [Choice(index) for index in range(len(request.prompts) * request.n)]
        self.head = {
            "id": response,
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": fingerprint,
        }

    def rendered(self) -> bytes:
        """Return the finished response as JSON, one choice at a time, so that other threads run meanwhile."""
        choices = [json.dumps(self.words.choice(choice, self.tokenizer, self.with_logprobs)) for choice in self.choices]
        head = json.dumps(self.head | {"object": self.words.object_type, "usage": self.usage()})
        return f'{head[:-1]}, "choices": [{", ".join(choices)}]}}'.encode()

    def opening(self) -> list[dict[str, object]]:
        """Return the chunks that a stream begins with."""
        first = [self.words.first(choice.index) for choice in self.choices]
        return [self._chunk([entry]) for entry in first if entry]

    def chunk(self, index: int, piece: Piece) -> dict[str, object]:
        """Take a piece and return its chunk."""
        choice = self.choices[index]
        made = self.words.piece(choice, piece, self.tokenizer, self.with_logprobs)
        choice.take(piece, False)
        return self._chunk([made])

    def closing(self) -> list[dict[str, object]]:
        """Return the chunk with the counts, if it was requested."""
        return [self._chunk([]) | {"usage": self.usage()}] if self.request.with_usage else []

    def usage(self) -> dict[str, int]:
        """Return the tokens of the prompts, each once, and of the completions, with the end token."""
        read, made = sum(len(prompt.prompt_ids) for prompt in self.request.prompts), sum(c.made for c in self.choices)
        return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}

    def _chunk(self, choices: list[dict[str, object]]) -> dict[str, object]:
        return self.head | {"object": self.words.chunk_type, "choices": choices}


def make_response_id(words: Chat | Plain) -> str:
    """Return a new random id, which clients cannot guess."""
    return words.prefix + secrets.token_hex(12)


def _show_token(tokenizer: Any, token: int, logprob: float | None) -> dict[str, object]:
    text = _decode_token(tokenizer, token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _decode_token(tokenizer: Any, token: int) -> str:
    return str(tokenizer.decode([token]))
