"""Chat settings as a model's files carry them: one JSON object in tokenizer_config.json."""

from collections.abc import Mapping

from schemas.base import JsonObject
from schemas.chat import Chat

BEGINS = "{# texts begin as the tokenizer begins them #}{{ bos_token }}"
"""Start of a template that has a token at its beginning only if the tokenizer itself writes one."""
KEY = "posttrain_chat"
"""Key of the settings in tokenizer_config.json; other tools ignore it."""
FIELDS = ("chat_template_kwargs", "system_prompt", "tools", "chat_date")


def merge_settings(carried: Mapping[str, object], chat: Chat) -> JsonObject:
    """Return the settings of a model after a stage's own are put over them; empty values are left out."""
    own = {name: value for name in FIELDS if (value := getattr(chat, name)) is not None}
    return {name: value for name, value in {**carried, **own}.items() if value}


def read_chat(settings: Mapping[str, object]) -> Chat:
    """Return the chat settings among those of a stage; a kind without them sets none."""
    return Chat.model_validate({name: settings.get(name) for name in Chat.model_fields})
