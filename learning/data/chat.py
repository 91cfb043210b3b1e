"""Messages to token ids and back. A prompt and a completion are encoded once, and their ids only ever concatenated."""

from typing import cast

from transformers import PreTrainedTokenizerBase

from learning.data.rendering import Messages, encode_rendered, fill_template, open_dialogue
from learning.data.rows import Row
from learning.data.turns import (
    Conversation,
    encode_conversation,
    find_call_end,
    find_end_text,
    render_after_assistant,
    require_eos,
)
from schemas.errors import StepError


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Messages, row: Row | None = None) -> list[int]:
    """Return ids of the conversation so far, up to where the assistant begins; `row` may have tools of its own.

    A last message of the assistant is the beginning of its answer and stays open. Text that looks like a special token
    stays text: only the template writes special tokens. Raises StepError without a chat template, or when the template
    refuses the messages.
    """
    dialogue = open_dialogue(tokenizer, messages, row)
    resume = bool(messages) and messages[-1]["role"] == "assistant"
    text = fill_template(tokenizer, dialogue, generate=not resume, resume=resume)
    return encode_rendered(tokenizer, text, dialogue.marked)


def encode_reply(tokenizer: PreTrainedTokenizerBase, text: str, role: str = "user") -> list[int]:
    """Return ids between the token that ends an assistant's turn and the beginning of its next one.

    They are what the chat template puts there, with `text` as the message in between: what a rendering of the whole
    conversation has more than one up to that end. Text that looks like a special token stays text. Raises StepError
    when the template refuses a conversation of several turns.
    """
    dialogue = open_dialogue(tokenizer, [{"role": role, "content": text}])
    reply = [message for message in dialogue.messages if message["role"] == role]
    after = render_after_assistant(tokenizer, reply, generate=True)
    end_id = find_turn_end(tokenizer)
    end = cast(str, tokenizer.convert_ids_to_tokens(end_id))
    # The end of a turn is sampled; it is encoded here so that what follows is split as it is after it, then cut off.
    closed = end in find_end_text(tokenizer)
    ids = encode_rendered(tokenizer, end + (after.partition(end)[2] if closed else after), dialogue.marked)
    return ids[1:] if ids[:1] == [end_id] else ids


def read_reply(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """Return the text of the message in ids that `encode_reply` gave, without what the template puts around it."""
    before, _, after = decode(tokenizer, encode_reply(tokenizer, "0")).rpartition("0")
    return decode(tokenizer, ids).removeprefix(before).removesuffix(after)


def find_turn_end(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the token that ends an assistant's turn.

    It is the last special token that the chat template writes after the assistant's text (`<end_of_turn>` for
    Gemma, `<|im_end|>` for ChatML), and the end-of-sequence token where the template writes none. Raises StepError for
    a tokenizer with neither.
    """
    end_text = find_end_text(tokenizer)
    return encode_rendered(tokenizer, end_text, {})[-1] if end_text else require_eos(tokenizer)


def find_turn_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end a turn: those that the chat template writes, and the end-of-sequence token.

    A template may end a turn that calls a tool with a token of its own (`<|call|>` of gpt-oss).
    """
    call_end = find_call_end(tokenizer)
    called = encode_rendered(tokenizer, call_end, {})[-1:] if call_end else []
    named = cast(int | None, tokenizer.eos_token_id)
    ends = [find_turn_end(tokenizer), *([] if named is None else [named]), *called]
    return tuple(dict.fromkeys(ends))


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return token ids of what an assistant says, without what ends its turn."""
    dialogue = open_dialogue(tokenizer, [{"role": "assistant", "content": text}])
    return encode_rendered(tokenizer, cast(str, dialogue.messages[-1]["content"]), dialogue.marked)


def encode_completion(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """Return the ids of one message of the assistant as an answer to any question, closed by what ends its turn.

    Text that looks like a special token stays text. Raises StepError for anything but one assistant message.
    """
    _require_answer(messages)
    try:
        return encode_answer(tokenizer, [{"role": "user", "content": "?"}], messages)[1]
    except StepError:  # a template that takes no such conversation
        return _encode_alone(tokenizer, messages)


def encode_answer(
    tokenizer: PreTrainedTokenizerBase, prompt: Messages, completion: Messages, row: Row | None = None
) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt and of its completion, up to what ends the turn.

    Together they are the beginning of `encode_conversation` where its tokens part at the prompt's end, as they do for
    almost every template; else the turn is encoded by itself, since sampling starts after the prompt's last token.
    """
    _require_answer(completion)
    given = encode_prompt(tokenizer, prompt, row)
    whole = encode_conversation(tokenizer, prompt, completion, row=row)
    if whole.ids[: len(given)] == given and not any(whole.learned[: len(given)]):
        end = len(whole.ids) - whole.learned[::-1].index(True)
        return given, whole.ids[len(given) : end]
    return given, _encode_alone(tokenizer, completion)


def encode_episode(
    tokenizer: PreTrainedTokenizerBase, prompt: Messages, completion: Messages, row: Row | None = None
) -> tuple[list[int], Conversation]:
    """Return the ids of a prompt, and those of the turns after it with which of them are the assistant's.

    A completion of one message is that of `encode_answer`. Of several, what stands between the assistant's turns
    (observations, results of tools) is context, and what follows the last of them is left out. Raise StepError for
    a completion that does not begin with the assistant, and where the template writes the prompt otherwise once the
    episode goes on: its tokens would not be those after which a model acts.
    """
    if len(completion) == 1:
        given, answer = encode_answer(tokenizer, prompt, completion, row)
        return given, Conversation(answer, [True] * len(answer))
    if not completion or completion[0]["role"] != "assistant":
        raise StepError("a completion must begin with a message of the assistant; drop the row")
    given = encode_prompt(tokenizer, prompt, row)
    whole = encode_conversation(tokenizer, prompt, completion, train_on="all", row=row)
    if whole.ids[: len(given)] != given:
        raise StepError(
            "the chat template writes this prompt in another way once the episode goes on; make a pair of each turn "
            "(`pair_episodes`), or set another chat_template"
        )
    end = len(whole.learned) - whole.learned[::-1].index(True)
    return given, Conversation(whole.ids[len(given) : end], whole.learned[len(given) : end])


def _encode_alone(tokenizer: PreTrainedTokenizerBase, completion: Messages) -> list[int]:
    text = completion[0].get("content")
    if not isinstance(text, str):
        raise StepError(
            "this chat template does not say how a completion without text follows its prompt; drop the row"
        )
    end_text = find_end_text(tokenizer)
    return [*encode_text(tokenizer, text), *(encode_rendered(tokenizer, end_text, {}) or [require_eos(tokenizer)])]


def _require_answer(messages: Messages) -> None:
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise StepError("a completion must be one assistant message; split longer conversations into rows")
    text = messages[0].get("content")
    if not isinstance(text, str) and not (text is None and messages[0].get("tool_calls")):
        raise StepError(f"the content of a completion must be text, not {type(text).__name__}; drop the row or fill it")


def decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """Return text of ids, without special tokens."""
    return cast(str, tokenizer.decode(ids, skip_special_tokens=True))
