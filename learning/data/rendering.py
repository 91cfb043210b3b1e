"""Messages filled into a chat template as text, and that text as token ids.

Text that looks like a special token stays text: it is replaced by a mark before the template is filled in, and encoded
as plain text in the mark's place. Only the template writes special tokens.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from learning.data.chat_settings import read_settings
from learning.data.rows import Row, replace_half_characters
from schemas.errors import StepError

Messages = list[Row]
MARK = "\uf8ff"
"""Stands around the number of a piece of text while a template is filled in: a character of private use."""
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The tag of a template that says itself what the assistant generates."""
LEARNING_KEYS = frozenset({"train", "weight"})
"""Keys of a message that say whether it is learned; templates do not see them."""


@dataclass(frozen=True)
class Dialogue:
    """Messages ready for a template, with what else it receives."""

    messages: Messages
    marked: Mapping[str, str]
    """Text that stands in the place of each mark."""
    options: Mapping[str, Any]
    """Tools and arguments of the template."""
    name: str
    """How errors call the row."""


@dataclass(frozen=True)
class Encoding:
    """Token ids of a text, and the characters [start, end) of the text that each token covers."""

    ids: list[int]
    spans: list[tuple[int, int]]


def open_dialogue(tokenizer: PreTrainedTokenizerBase, messages: Messages, row: Row | None = None) -> Dialogue:
    """Return messages ready for the tokenizer's template, with system prompt and tools of its settings or of `row`.

    Raise StepError naming row and message for a content that no template can take.
    """
    settings = read_settings(tokenizer)
    name = f"row {row['id']}" if row and row.get("id") else "a conversation"
    checked = [_check(message, place, name) for place, message in enumerate(messages)]
    if settings.system_prompt is not None and not (checked and checked[0]["role"] in ("system", "developer")):
        checked.insert(0, {"role": "system", "content": settings.system_prompt})
    own = row or {}
    tools = _parse(own.get("tools"), "tools", name) or list(settings.tools) or None
    arguments = dict(settings.template_kwargs) | (
        _parse(own.get("chat_template_kwargs"), "chat_template_kwargs", name) or {}
    )
    texts, marked = _mark(checked, get_special_pattern(tokenizer))
    options = {**arguments, "tools": tools, "strftime_now": settings.today.strftime}
    return Dialogue(texts, marked, options, name)


def _check(message: Row, place: int, name: str) -> Row:
    content, role = message.get("content"), message.get("role")
    where = f"{name}: message {place + 1} ({role})"
    if not isinstance(role, str):
        raise StepError(f"{name}: message {place + 1} has no role; give system, user, assistant or tool")
    if content is None and not message.get("tool_calls"):
        raise StepError(f"{where} has no content: null is allowed only with tool_calls; drop the row or fill it")
    if content is not None and not isinstance(content, str):
        parts = content if isinstance(content, list) else [content]
        if not all(isinstance(part, dict) and "type" in part for part in parts):
            raise StepError(f"{where}: content must be text, not {type(content).__name__}; drop the row or fill it")
    kept = {key: value for key, value in message.items() if key not in LEARNING_KEYS}
    if (calls := message.get("tool_calls")) is not None:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise StepError(f"{where}: tool_calls must be a list of calls")
        kept["tool_calls"] = [_open_arguments(call) for call in calls]
    return kept


def _open_arguments(call: Row) -> Row:
    """Return a tool call whose arguments are an object, as templates expect; OpenAI's API writes them as JSON text."""
    if isinstance(call.get("function"), dict):
        return call | {"function": _open_arguments(call["function"])}
    try:
        arguments = json.loads(call["arguments"])
    except (KeyError, TypeError, ValueError):  # none, an object already, or no JSON
        return call
    return call | {"arguments": arguments} if isinstance(arguments, dict) else call


def _parse(value: Any, what: str, name: str) -> Any:
    """Return a column that holds JSON text, or the value itself."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise StepError(f"{name}: {what} is not JSON: {error}") from error


def fill_template(
    tokenizer: PreTrainedTokenizerBase,
    dialogue: Dialogue,
    messages: Messages | None = None,
    *,
    generate: bool = False,
    resume: bool = False,
) -> str:
    """Return the text of messages (None: all of the dialogue).

    `generate` opens a turn of the assistant after them; `resume` leaves the last message, the assistant's, open. Raise
    StepError without a chat template, or when the template refuses the messages.
    """
    options = {"add_generation_prompt": generate, "continue_final_message": resume}
    return _render(tokenizer, dialogue, dialogue.messages if messages is None else messages, options)[0]


def find_generated(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> list[tuple[int, int]] | None:
    """Return the characters between `{% generation %}` and its end, for each; None for a template without the tag."""
    if not has_generation_tags(tokenizer, dialogue):
        return None
    return _render(tokenizer, dialogue, dialogue.messages, {"return_assistant_tokens_mask": True})[1]


def has_generation_tags(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> bool:
    """Return whether the template itself says what the assistant generates."""
    return GENERATION.search(get_template(tokenizer, dialogue)) is not None


def get_template(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> str:
    """Return the template that a dialogue is filled into; a tokenizer may have another one for tools."""
    if not tokenizer.chat_template:
        raise StepError("the model's tokenizer has no chat template; give `chat_template`, or chat_template.jinja")
    try:
        return str(tokenizer.get_chat_template(None, dialogue.options["tools"]))
    except ValueError as error:
        raise StepError(f"{dialogue.name}: {error}") from error


def _render(
    tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, messages: Messages, options: Mapping[str, Any]
) -> tuple[str, list[tuple[int, int]]]:
    template = get_template(tokenizer, dialogue)
    try:
        texts, spans = cast(
            tuple[list[str], list[list[tuple[int, int]]]],
            render_jinja_template(
                [messages],
                chat_template=template,
                **{**tokenizer.special_tokens_map, **dialogue.options, **options},
            ),
        )
    except (TemplateError, TypeError, ValueError, AttributeError) as error:
        raise StepError(
            f"{dialogue.name}: the chat template refuses a prompt: {error}; its messages are {messages!r}"
        ) from error
    return texts[0], spans[0] if spans else []


def encode_rendered(tokenizer: PreTrainedTokenizerBase, text: str, marked: Mapping[str, str]) -> list[int]:
    """Return ids of a rendering; what stands in the place of a mark is plain text."""
    if not marked:
        return tokenizer.encode(text, add_special_tokens=False)
    ids: list[int] = []
    for part in _split_at_marks(text):
        plain = marked.get(part)
        if part:
            ids += tokenizer.encode(plain or part, add_special_tokens=False, split_special_tokens=plain is not None)
    return ids


def encode_with_spans(tokenizer: PreTrainedTokenizerBase, text: str, marked: Mapping[str, str]) -> Encoding:
    """Return ids of a rendering with the characters that each covers; a mark's tokens cover the whole mark."""
    if not tokenizer.is_fast:
        raise StepError(
            "the model's tokenizer cannot say where its tokens stand in a text; convert it to tokenizer.json"
        )
    made, at = Encoding([], []), 0
    for part in _split_at_marks(text) if marked else [text]:
        plain = marked.get(part)
        if part:
            encoded = tokenizer(
                plain or part,
                add_special_tokens=False,
                return_offsets_mapping=True,
                split_special_tokens=plain is not None,
            )
            made.ids.extend(encoded["input_ids"])
            offsets = cast(list[tuple[int, int]], encoded["offset_mapping"])
            whole = (at, at + len(part))
            made.spans.extend(whole if plain else (at + start, at + end) for start, end in offsets)
        at += len(part)
    return made


def _split_at_marks(text: str) -> list[str]:
    return re.split(f"({MARK}\\d+{MARK})", text)


def _mark(messages: Messages, special: re.Pattern[str] | None) -> tuple[Messages, dict[str, str]]:
    """Return messages with marks in place of text that looks like special tokens, and the text of each mark."""
    marks: dict[str, str] = {}
    # A mark that stands in a text already is marked itself, so that none is taken for another.
    pattern = None if special is None else re.compile(f"{MARK}|{special.pattern}")

    def mark(match: re.Match[str]) -> str:
        key = f"{MARK}{len(marks)}{MARK}"
        marks[key] = match[0]
        return key

    def edit(text: str) -> str:
        whole = replace_half_characters(text)
        return whole if pattern is None else pattern.sub(mark, whole)

    needed = special is not None and any(special.search(text) for text in _collect_texts(messages))
    change = edit if needed else replace_half_characters
    return [{k: v if k == "role" else _edit_texts(v, change) for k, v in m.items()} for m in messages], marks


def _edit_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _edit_texts(item, change) for key, item in value.items()}
    return [_edit_texts(item, change) for item in value] if isinstance(value, list) else value


def _collect_texts(value: Any) -> list[str]:
    texts: list[str] = []

    def keep(text: str) -> str:
        texts.append(text)
        return text

    _edit_texts(value, keep)
    return texts


def get_special_pattern(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """Return a pattern of a tokenizer's special tokens, the longest first; None if it has none."""
    return _make_special_pattern(tokenizer, len(tokenizer))


@lru_cache(maxsize=16)
def _make_special_pattern(tokenizer: PreTrainedTokenizerBase, size: int) -> re.Pattern[str] | None:
    """`size` is part of the cache key: tokens may be added."""
    texts = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    longest = sorted(texts | {str(token) for token in tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(re.escape(text) for text in longest)) if longest else None
