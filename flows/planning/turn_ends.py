"""The ids at which two models end a turn by tokenizer and template, where their files list different ones."""

from functools import partial
from pathlib import Path

from lineage.artifacts.contract import find_disagreement
from schemas.adapter_base import find_tokenizer_folder
from schemas.base import JsonObject
from schemas.chat_settings import read_chat
from schemas.manifest import Contract


def find_model_disagreement(one: Contract, other: Contract, folder: Path | None, settings: JsonObject) -> str | None:
    """Return what differs between two models under the chat settings of a stage, or None if they fit.

    `folder` is that of either model.
    """
    return find_disagreement(one, other, partial(read_turn_ends, folder, settings))


def read_turn_ends(folder: Path | None, settings: JsonObject) -> frozenset[int]:
    """Return the ids that end a turn in a model's folder under the chat settings of a stage; none without a folder."""
    if folder is None:
        return frozenset()
    from learning.data.chat import find_turn_ends  # transformers takes seconds to import, and few plans need it
    from learning.data.chat_settings import apply_chat  # likewise
    from learning.models.policy import load_tokenizer  # likewise

    tokenizer = load_tokenizer(find_tokenizer_folder(folder))
    apply_chat(tokenizer, read_chat(settings))
    return frozenset(find_turn_ends(tokenizer))
