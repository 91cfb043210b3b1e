"""Messages to token ids and back. A prompt and a completion are encoded once, and their ids only ever concatenated."""

import re
from datetime import date
from functools import lru_cache
from typing import cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from learning.data.rows import Row
from learning.data.text_edits import replace_half_characters
from schemas.errors import StepError

Messages = list[Row]
MARK = "\uf8ff"
"""Stands around the number of a piece of text while a template is filled in: a character of private use."""
PLACE = "\uf8fe"
"""Stands where an earlier turn of the assistant is."""
PINNED_DATE = date(2024, 7, 26)
"""The date that templates receive as today's, so that the same data give the same tokens on any day."""


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """Return ids of the conversation so far, up to where the assistant begins.

    Text that looks like a special token stays text: only the template writes special tokens. Raises StepError without a
    chat template, or when the template refuses the messages.
    """
    messages, marked = _marked(messages, _special_of(tokenizer, len(tokenizer)))
    return _encoded(tokenizer, _rendered(tokenizer, messages), marked)


def encode_reply(tokenizer: PreTrainedTokenizerBase, text: str, role: str = "user") -> list[int]:
    """Return ids between the token that ends an assistant's turn and the beginning of its next one.

    They are what the chat template puts there, with `text` as the message in between: what a rendering of the whole
    conversation has more than one up to that end. Text that looks like a special token stays text. Raises StepError
    when the template refuses a conversation of several turns.
    """
    reply, marked = _marked([{"role": role, "content": text}], _special_of(tokenizer, len(tokenizer)))
    after = _after_assistant(tokenizer, reply, generate=True)
    end_id = find_turn_end(tokenizer)
    end = cast(str, tokenizer.convert_ids_to_tokens(end_id))
    # The end of a turn is sampled; it is encoded here so that what follows is split as it is after it, then cut off.
    closed = end in _after_assistant(tokenizer, [], generate=False)
    ids = _encoded(tokenizer, end + (after.partition(end)[2] if closed else after), marked)
    return ids[1:] if ids[:1] == [end_id] else ids


def find_turn_end(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the token that ends an assistant's turn.

    It is the first special token that the chat template writes after the assistant's text (`<end_of_turn>` for
    Gemma, `<|im_end|>` for ChatML), and the end-of-sequence token where the template writes none. Raises StepError for
    a tokenizer with neither.
    """
    template = tokenizer.chat_template
    return _turn_end(tokenizer, len(tokenizer), str(template) if template else None)


def find_turn_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end a turn: the one that the chat template writes, and the end-of-sequence token."""
    eos = cast(int | None, tokenizer.eos_token_id)
    return tuple(dict.fromkeys(token for token in (find_turn_end(tokenizer), eos) if token is not None))


@lru_cache(maxsize=16)
def _turn_end(tokenizer: PreTrainedTokenizerBase, size: int, template: str | None) -> int:
    special = _special_of(tokenizer, size)
    try:
        match = special and template and special.search(_after_assistant(tokenizer, [], generate=False))
    except StepError:  # a template that takes no such conversation does not say how turns end
        match = None
    if match:
        return cast(int, tokenizer.convert_tokens_to_ids(match[0]))
    if tokenizer.eos_token_id is None:
        raise StepError("the model's tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
    return cast(int, tokenizer.eos_token_id)


def _after_assistant(tokenizer: PreTrainedTokenizerBase, then: Messages, *, generate: bool) -> str:
    """Return what a template writes after an assistant's text, with further messages."""
    asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": PLACE}, *then]
    _, place, after = _rendered(tokenizer, asked, generate=generate).partition(PLACE)
    if not place:
        raise StepError("the chat template leaves out earlier turns of the assistant, so no episode can be laid out")
    return after


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Messages, *, generate: bool = True) -> str:
    if not tokenizer.chat_template:
        raise StepError("the model's tokenizer has no chat template; add chat_template.jinja to the model's folder")
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generate, strftime_now=PINNED_DATE.strftime
        )
    except (TemplateError, TypeError) as error:  # TypeError: a template adds to a content that is null
        raise StepError(f"the chat template refuses a prompt: {error}; its messages are {messages!r}") from error
    return cast(str, text)


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return token ids of what an assistant says, without the token that ends its turn."""
    return encode_completion(tokenizer, [{"role": "assistant", "content": text}])[:-1]


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str, marked: dict[str, str]) -> list[int]:
    """Return ids of a rendering; what stands in the place of a mark is plain text."""
    if not marked:
        return tokenizer.encode(text, add_special_tokens=False)
    ids: list[int] = []
    for part in re.split(f"({MARK}\\d+{MARK})", text):
        plain = marked.get(part)
        if part:
            ids += tokenizer.encode(plain or part, add_special_tokens=False, split_special_tokens=plain is not None)
    return ids


def _marked(messages: Messages, special: re.Pattern[str] | None) -> tuple[Messages, dict[str, str]]:
    """Return messages with marks in place of text that looks like special tokens, and the text of each mark."""
    messages = [
        {**m, "content": replace_half_characters(m["content"])} if isinstance(m.get("content"), str) else m
        for m in messages
    ]
    texts = [m["content"] for m in messages if isinstance(m.get("content"), str)]
    if special is None or not any(special.search(text) for text in texts):
        return messages, {}
    # A mark that stands in a text already is marked itself, so that none is taken for another.
    special = re.compile(f"{MARK}|{special.pattern}")
    marks: dict[str, str] = {}

    def mark(match: re.Match[str]) -> str:
        key = f"{MARK}{len(marks)}{MARK}"
        marks[key] = match[0]
        return key

    changed = [
        {**m, "content": special.sub(mark, m["content"])} if isinstance(m.get("content"), str) else m for m in messages
    ]
    return changed, marks


@lru_cache(maxsize=16)
def _special_of(tokenizer: PreTrainedTokenizerBase, size: int) -> re.Pattern[str] | None:
    """Return a pattern of a tokenizer's special tokens; `size` is part of the cache key, tokens may be added."""
    texts = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    longest = sorted(texts | {str(token) for token in tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(re.escape(text) for text in longest)) if longest else None


def encode_completion(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """Return the ids of the assistant's turn, closed by the token that ends it (`turn_end`).

    Text that looks like a special token stays text. Raises StepError for anything but one assistant message.
    """
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise StepError("a completion must be one assistant message; split longer conversations into rows")
    text = messages[0]["content"]
    if not isinstance(text, str):
        raise StepError(f"the content of a completion must be text, not {type(text).__name__}; drop the row or fill it")
    ids = tokenizer.encode(replace_half_characters(text), add_special_tokens=False, split_special_tokens=True)
    return [*ids, find_turn_end(tokenizer)]


def decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """Return text of ids, without special tokens."""
    return cast(str, tokenizer.decode(ids, skip_special_tokens=True))
