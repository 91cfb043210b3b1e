"""Chat settings that a tokenizer carries with its template: in memory, in the model's folder, and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from transformers import PreTrainedTokenizerBase

from schemas.chat import Chat
from schemas.chat_settings import BEGINS, KEY, merge_settings

PINNED_DATE = date(2024, 7, 26)
"""The date that templates receive as today's unless a recipe sets one: equal data give equal tokens on any day."""


@dataclass(frozen=True)
class ChatSettings:
    """What a chat template receives besides the messages."""

    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the template, such as `enable_thinking`."""
    system_prompt: str | None = None
    """System message of conversations that have none."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the tools that a conversation may call, unless its row has its own."""
    today: date = PINNED_DATE
    """The date that the template's `strftime_now` formats."""


def read_settings(tokenizer: PreTrainedTokenizerBase) -> ChatSettings:
    """Return the chat settings that a tokenizer carries."""
    carried = tokenizer.init_kwargs.get(KEY) or {}
    return ChatSettings(
        carried.get("chat_template_kwargs", {}),
        carried.get("system_prompt"),
        tuple(carried.get("tools", ())),
        date.fromisoformat(carried["chat_date"]) if "chat_date" in carried else PINNED_DATE,
    )


def write_settings(tokenizer: PreTrainedTokenizerBase, carried: Mapping[str, Any]) -> None:
    """Set the chat settings of a tokenizer; `carried` holds JSON values of those that are not the defaults."""
    if carried:
        tokenizer.init_kwargs[KEY] = dict(carried)
    else:
        tokenizer.init_kwargs.pop(KEY, None)


def apply_chat(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> None:
    """Set what a stage says of the chat; what it leaves out stays as the tokenizer carries it."""
    if chat.chat_template is not None:
        tokenizer.chat_template = chat.chat_template
        if chat.chat_template.startswith(BEGINS) and tokenizer("x").input_ids[0] != tokenizer.bos_token_id:
            tokenizer.chat_template = chat.chat_template.removeprefix(BEGINS)
    write_settings(tokenizer, merge_settings(tokenizer.init_kwargs.get(KEY) or {}, chat))


def describe_settings(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the settings as JSON text: equal texts render equal messages equally under one template."""
    return json.dumps(tokenizer.init_kwargs.get(KEY) or {}, sort_keys=True)
