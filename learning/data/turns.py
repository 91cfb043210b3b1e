"""Where an assistant's turns stand in a rendered conversation, found by exact differences of renderings.

A turn is what a model samples: it begins after the text that opens it (the generation prompt) and ends with the token
that the template writes at its end. Nothing here knows a template: every border is a difference of two renderings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, cast

from transformers import PreTrainedTokenizerBase

from learning.data.chat_settings import describe_settings
from learning.data.rendering import (
    LEARNING_KEYS,
    Dialogue,
    Messages,
    encode_with_spans,
    fill_template,
    find_generated,
    get_special_pattern,
    has_generation_tags,
    open_dialogue,
)
from learning.data.rows import Row
from schemas.errors import StepError

PLACE = "\ufdd0"
"""Stands where an earlier turn of the assistant is: no character at all, so that no text begins or ends with it."""
TrainOn = Literal["last", "all", "marked"]


@dataclass(frozen=True)
class Conversation:
    """A conversation as token ids, and which of them are learned."""

    ids: list[int]
    learned: list[bool]


@dataclass(frozen=True)
class Layout:
    """A rendered conversation: its text, and the characters [start, end) of turns in it."""

    text: str
    turns: tuple[tuple[int, int], ...]
    closed: bool = True
    """Whether the template itself writes what ends a turn."""


def find_end_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what the template writes after the last assistant's text, up to its last special token in a row.

    Empty for a template that writes no special token there, or takes no such conversation.
    """
    template = str(tokenizer.chat_template) if tokenizer.chat_template else None
    return _find_end_text(tokenizer, len(tokenizer), template, describe_settings(tokenizer))


@lru_cache(maxsize=16)
def _find_end_text(tokenizer: PreTrainedTokenizerBase, size: int, template: str | None, settings: str) -> str:
    special = get_special_pattern(tokenizer)
    if special is None or template is None:
        return ""
    try:
        after = render_after_assistant(tokenizer, [], generate=False)
    except StepError:  # a template that takes no such conversation does not say how turns end
        return ""
    match = special.search(after)
    end = 0
    while match is not None:
        end = match.end()
        match = special.match(after, end)
    return after[:end]


def find_call_end(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the special token that the template writes after a turn that calls a tool; empty if it writes none."""
    template = str(tokenizer.chat_template) if tokenizer.chat_template else None
    return _find_call_end(tokenizer, len(tokenizer), template, describe_settings(tokenizer))


@lru_cache(maxsize=16)
def _find_call_end(tokenizer: PreTrainedTokenizerBase, size: int, template: str | None, settings: str) -> str:
    if template is None:
        return ""
    call = {"id": "call00000", "type": "function", "function": {"name": PLACE, "arguments": {}}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        text = fill_template(tokenizer, open_dialogue(tokenizer, messages))
    except StepError:  # no tools in this template
        return ""
    _, place, after = text.rpartition(PLACE)
    return cut_after_special(tokenizer, after) if place else ""


def count_common(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def cut_after_special(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return a rendering up to the special token that it ends with, without space after it; empty if it has none."""
    special, end = get_special_pattern(tokenizer), 0
    for match in special.finditer(text) if special is not None else ():
        end = match.end()
    return text[:end] if not text[end:].strip() else ""


def render_after_assistant(tokenizer: PreTrainedTokenizerBase, then: Messages, *, generate: bool) -> str:
    """Return what a template writes after an assistant's text, with further messages; marks stay in it."""
    dialogue = open_dialogue(tokenizer, [{"role": "user", "content": "?"}, {"role": "assistant", "content": PLACE}])
    _, place, after = fill_template(tokenizer, dialogue, [*dialogue.messages, *then], generate=generate).partition(
        PLACE
    )
    if not place:
        raise StepError("the chat template leaves out earlier turns of the assistant, so no episode can be laid out")
    return after


def require_eos(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the end-of-sequence token; raise StepError for a tokenizer without one."""
    if tokenizer.eos_token_id is None:
        raise StepError("the model's tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
    return cast(int, tokenizer.eos_token_id)


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Messages,
    completion: Messages,
    *,
    train_on: TrainOn = "last",
    row: Row | None = None,
) -> Conversation:
    """Return the ids that `apply_chat_template` gives for a prompt and its completion, and which are learned.

    Learned are the assistant's words and what ends its turn: the part between `{% generation %}` tags of a template
    that has them, else what a difference of renderings gives. A prompt that ends with a message of the assistant is
    the beginning of the completion's first. Raise StepError for a conversation without a turn to learn.
    """
    messages = [*prompt, *completion]
    dialogue = open_dialogue(tokenizer, messages, row)
    shift = len(dialogue.messages) - len(messages)
    tagged = has_generation_tags(tokenizer, dialogue)
    numbers = [number + shift for number in _choose_turns(messages, train_on, dialogue.name, tagged=tagged)]
    resumed = None
    if prompt and completion and prompt[-1]["role"] == completion[0]["role"] == "assistant":
        resumed = shift + len(prompt) - 1
        numbers = [number - (number > resumed) for number in numbers]
    layout = lay_out(tokenizer, dialogue, numbers, resumed)
    encoding = encode_with_spans(tokenizer, layout.text, dialogue.marked)
    learned = [any(end > s and start < e for s, e in layout.turns) for start, end in encoding.spans]
    if layout.closed:
        return Conversation(encoding.ids, learned)
    return Conversation([*encoding.ids, require_eos(tokenizer)], [*learned, True])


def _choose_turns(messages: Messages, train_on: TrainOn, name: str, *, tagged: bool) -> list[int]:
    """Return the numbers of the messages that are learned; `tagged`: the template itself says what is generated."""
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        raise StepError(f"{name}: no message of the assistant, so there is nothing to learn; drop the row")
    if train_on == "marked":
        marked = [number for number in turns if messages[number].get("train", messages[number].get("weight"))]
        if not marked and not (tagged and not any(LEARNING_KEYS & messages[number].keys() for number in turns)):
            raise StepError(
                f"{name}: train_on is `marked` and no message of the assistant has `train: true` or `weight: 1`, nor "
                "has the template {% generation %} tags; mark one, drop the row, or set train_on"
            )
        return marked or turns
    return turns if train_on != "last" else turns[-1:]


def lay_out(
    tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, numbers: Sequence[int], resumed: int | None = None
) -> Layout:
    """Return the text of a dialogue, and where the messages `numbers` stand in it.

    `resumed` is the number of a message that the next one continues; `numbers` count the two as one. A last turn of
    which the template leaves out the thinking is written as it is sampled: after the generation prompt, as it stands.
    """
    whole, opening = _join(dialogue, resumed) if resumed is not None else (dialogue, None)
    view = _View(tokenizer, whole, fill_template(tokenizer, whole), resumed, opening)
    last = len(whole.messages) - 1
    turns = [view.find(number) for number in numbers]
    for number, (start, end) in zip(numbers, turns, strict=True):
        texts = _list_texts(whole.messages[number], opening if number == resumed else None, final=number == last)
        if not _holds(view.text[start:end], texts):
            return _lay_out_as_sampled(view, numbers, number, view.text[start:end])
        _refuse_foreign_text(view, number, start, end)
    closed = bool(find_end_text(tokenizer))
    if not closed and last in numbers:
        return Layout(view.text[: turns[-1][1]], tuple(turns), closed=False)
    generated = find_generated(tokenizer, whole)
    if generated is not None:
        turns = [(s, e) for s, e in generated if any(e > start and s < end for start, end in turns)]
        if not turns:
            raise StepError(f"{whole.name}: the template's {{% generation %}} tags leave out the turn to learn")
    return Layout(view.text, tuple(turns))


def _join(dialogue: Dialogue, number: int) -> tuple[Dialogue, str]:
    """Return the dialogue with message `number` and the next as one, and the text of the first."""
    first, second = dialogue.messages[number], dialogue.messages[number + 1]
    begun, rest = first.get("content"), second.get("content")
    if not isinstance(begun, str) or not isinstance(rest, str):
        raise StepError(f"{dialogue.name}: a completion can continue only text, and only with text")
    messages = [*dialogue.messages[:number], second | {"content": begun + rest}, *dialogue.messages[number + 2 :]]
    return replace(dialogue, messages=messages), begun


@dataclass(frozen=True)
class _View:
    """A rendered dialogue in which turns are looked for."""

    tokenizer: PreTrainedTokenizerBase
    dialogue: Dialogue
    text: str
    resumed: int | None = None
    opening: str | None = None
    """The given beginning of message `resumed`."""
    generate: bool = False
    """Whether the text ends with a generation prompt."""

    def find(self, number: int) -> tuple[int, int]:
        """Return the characters of a turn, from what opens it to what ends it."""
        message, before = self.dialogue.messages[number], self.render_before(number)
        end_text, content = find_end_text(self.tokenizer), message.get("content")
        opened = before is not None and self.text.startswith(before)
        if before is not None and opened and set(message) == {"role", "content"}:
            closing = f"{(content or '')[len(self.opening or '') if number == self.resumed else 0 :]}{end_text}"
            if number == len(self.dialogue.messages) - 1 and self.text.startswith(closing, len(before)):
                return len(before), len(before) + len(closing)
        if before is not None and opened and (end := self._find_end_of_prefix(number)) > len(before):
            return len(before), end
        place = PLACE
        while place in self.text:
            place += PLACE
        other = self._render_with(number, place)
        at = other.index(place)
        common = count_common(self.text, other)
        start = self._find_start(number, before, common)
        end = self._find_end(other[at + len(place) :], end_text, common, self._read_opening(number, before)[1])
        if end <= start:
            raise StepError(f"{self.dialogue.name}: the chat template does not show where message {number + 1} is")
        return start, end

    def _find_end_of_prefix(self, number: int) -> int:
        """Return where the conversation up to a message ends; 0 where no rendering shows it."""
        try:
            prefix = fill_template(self.tokenizer, self.dialogue, self.dialogue.messages[: number + 1])
        except StepError:
            return 0
        if not self.text.startswith(prefix):
            return 0
        end = len(cut_after_special(self.tokenizer, prefix))
        plain = set(self.dialogue.messages[number]) == {"role", "content"}
        return end or (0 if plain else len(prefix.rstrip()))

    def render_before(self, number: int) -> str | None:
        """Return what a model receives before it samples a turn; None where the template renders no such beginning."""
        messages = self.dialogue.messages[:number]
        try:
            if number == self.resumed:
                begun = {"role": "assistant", "content": self.opening}
                return fill_template(self.tokenizer, self.dialogue, [*messages, begun], resume=True)
            return fill_template(self.tokenizer, self.dialogue, messages, generate=True) if messages else None
        except StepError:
            return None

    def _render_with(self, number: int, place: str) -> str:
        placed = list(self.dialogue.messages)
        placed[number] = {"role": "assistant", "content": place}
        text = fill_template(self.tokenizer, self.dialogue, placed, generate=self.generate)
        if place not in text:
            raise StepError(
                f"{self.dialogue.name}: the chat template leaves out message {number + 1}; it has no tokens"
            )
        return text

    def _find_start(self, number: int, before: str | None, common: int) -> int:
        """Return where a turn begins; `common` characters are shared with the rendering that has a place in it."""
        if before is not None and self.text.startswith(before):
            return len(before)
        closed, opening = self._read_opening(number, before)
        special = get_special_pattern(self.tokenizer)
        match = special.search(opening) if special is not None else None
        head = opening[: match.end()] if match else opening
        at = self.text.rfind(head, count_common(self.text, closed), common) if head else -1
        # A template may write less before a turn that is over than before one that is to come.
        return at + count_common(self.text[at:common], opening) if at >= 0 else common

    def _read_opening(self, number: int, before: str | None) -> tuple[str, str]:
        """Return the messages before a turn as the template writes them, and the generation prompt after them."""
        messages = self.dialogue.messages[:number]
        closed = fill_template(self.tokenizer, self.dialogue, messages) if messages else ""
        return closed, before[len(closed) :] if before is not None and before.startswith(closed) else ""

    def _find_end(self, after: str, end_text: str, common: int, opening: str) -> int:
        """Return where a turn ends; `after` is what stands after the place in the other rendering.

        A special token that opens turns (`opening` is a generation prompt) ends none, unless the last one ends with it.
        """
        if end_text:
            special = get_special_pattern(self.tokenizer)
            match = special.search(after) if special is not None else None
            closing = end_text if after.startswith(end_text) else after[: match.end()] if match else ""
            bare = match is not None and not after[: match.start()].strip() and not opening.startswith(match[0])
            rest = after[len(closing) :]
            if (closing == end_text or bare) and self.text.endswith(rest) and len(self.text) - len(rest) >= common:
                return len(self.text) - len(rest)
        shared = count_common(self.text[common:][::-1], after[::-1])
        return len(self.text) - shared


def _lay_out_as_sampled(view: _View, numbers: Sequence[int], at: int, turn: str) -> Layout:
    """Return the layout with the last turn as a model samples it, since the template leaves out its thinking.

    The thinking of a last turn is what there is to learn; templates drop it from turns that are over. `turn` is what
    the template writes instead.
    """
    message, before, last = view.dialogue.messages[at], view.render_before(at), len(view.dialogue.messages) - 1
    content = message.get("content")
    answer = _list_texts(message, view.opening if at == view.resumed else None, final=False)
    plain = at == last and set(message) == {"role", "content"}
    if not plain or not isinstance(content, str) or before is None or not _holds(turn, answer):
        raise StepError(
            f"{view.dialogue.name}: the chat template leaves out a part of message {at + 1}, which is to be learned "
            f"({', '.join(message)}); write the thinking in its content, or give a `chat_template` that renders it"
        )
    rest = _cut_begun(before, content[len(view.opening or "") if last == view.resumed else 0 :])
    closing = find_end_text(view.tokenizer)
    text = before + rest + closing
    earlier = replace(
        view, dialogue=replace(view.dialogue, messages=view.dialogue.messages[:last]), text=before, generate=True
    )
    turns = [earlier.find(number) for number in numbers if number != last]
    return Layout(text, (*turns, (len(before), len(text))), closed=bool(closing))


def _cut_begun(before: str, content: str) -> str:
    """Return content without what the generation prompt has written of it already, such as `<think>`."""
    begun = before.rstrip()
    for length in range(min(len(begun), len(content)), 0, -1):
        if begun.endswith(content[:length]) and content[:length].endswith(">"):
            rest, blank = content[length:], before[len(begun) :]
            return rest.removeprefix(blank) if rest.startswith(blank) else rest.lstrip("\n")
    return content


def _list_texts(message: Row, opening: str | None, *, final: bool) -> list[str]:
    """Return the texts that a rendered turn must have: templates may drop the thinking of all but the final one."""
    content = message.get("content")
    texts = [content[len(opening or "") :]] if isinstance(content, str) else []
    if not final:
        texts = [text.rpartition("</think>")[2] for text in texts]
    calls = [call.get("function", call) for call in message.get("tool_calls") or () if isinstance(call, dict)]
    thinking = [message.get(key) for key in ("reasoning_content", "thinking")] if final else []
    return [text for text in [*texts, *thinking, *(call.get("name") for call in calls)] if isinstance(text, str)]


def _refuse_foreign_text(view: _View, number: int, start: int, end: int) -> None:
    """Raise StepError if the message after a turn seems to stand inside of it, or the one before it after it."""
    name, (before, turn, rest) = view.dialogue.name, (view.text[:start], view.text[start:end], view.text[end:])
    after = _list_contents(view.dialogue.messages[number + 1 : number + 2])
    if after and not _holds(rest, after) and _holds(turn, after):
        raise StepError(
            f"{name}: the chat template does not say where message {number + 1} ends: message "
            f"{number + 2} stands inside of it; give a `chat_template` with {{% generation %}} tags"
        )
    earlier = _list_contents(view.dialogue.messages[max(number - 1, 0) : number])
    if earlier and not _holds(before, earlier) and _holds(rest, earlier):
        raise StepError(
            f"{name}: the chat template writes message {number} after message {number + 1}; give a `chat_template` "
            "that keeps the order of messages"
        )


def _list_contents(messages: Messages) -> list[str]:
    contents = [message.get("content") for message in messages]
    return [text for text in contents if isinstance(text, str) and text.strip()]


def _holds(turn: str, texts: Sequence[str]) -> bool:
    """Return whether a rendered turn has all texts, whatever the template did to their white space."""
    squeezed = "".join(turn.split())
    return all("".join(text.split()) in squeezed for text in texts)
