"""The contract between stages: fingerprints that models of later stages must share, read from a model's files."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.adapter_base import find_plain_base, find_tokenizer_folder
from schemas.base import JsonObject
from schemas.chat_settings import KEY, merge_settings, read_chat
from schemas.manifest import Contract

GENERATION = "generation_config.json"
UNBOUNDED = 2**31
"""Maximum length in tokens of a model whose files state no limit."""


def read_contract(folder: Path) -> Contract | None:
    """Return the contract of a model folder (or of an adapter's base), or None if it has no tokenizer."""
    if not holds_tokenizer(folder):
        return None
    below, folder = find_plain_base(folder), find_tokenizer_folder(folder)
    tokenizer, settings = _read_json(folder / "tokenizer.json"), _read_json(folder / "tokenizer_config.json")
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text() if template_file.is_file() else settings.get("chat_template") or ""
    machine = {k: tokenizer.get(k) for k in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")}
    added = tokenizer.get("added_tokens", [])
    special = [[t["id"], t["content"]] for t in added if t.get("special")]
    plain = [[t["id"], t["content"]] for t in added if not t.get("special")]
    named = {k: _token_text(settings.get(k)) for k in ("bos_token", "eos_token", "pad_token", "unk_token")}
    limits = [settings.get("model_max_length"), _read_json(below / "config.json").get("max_position_embeddings")]
    return Contract(
        tokenizer=_hash_json([_canonical(machine), sorted(plain)]),
        chat_template=_hash_json(template),
        special_tokens=_hash_json([sorted(special), named]),
        stop_ids=_read_stop_ids(folder if (folder / GENERATION).is_file() else below),
        chat=settings.get(KEY) or {},
        max_length=int(min([n for n in limits if n], default=UNBOUNDED)),
    )


def holds_tokenizer(folder: Path) -> bool:
    """Return whether a model folder, or an adapter's base, has a tokenizer."""
    return (find_tokenizer_folder(folder) / "tokenizer.json").is_file()


def override_contract(contract: Contract, settings: JsonObject) -> Contract:
    """Return the contract of a model under the chat settings of a stage."""
    chat = read_chat(settings)
    template = contract.chat_template if chat.chat_template is None else _hash_json(chat.chat_template)
    return contract.model_copy(update={"chat_template": template, "chat": merge_settings(contract.chat, chat)})


def find_disagreement(
    one: Contract, other: Contract, read_turn_ends: Callable[[], frozenset[int]] = frozenset
) -> str | None:
    """Return what differs between two contracts, or None if the models fit; lengths may differ.

    `read_turn_ends` returns the ids at which both stop by tokenizer and template; it is called where their files list
    different ones, since posttrain lists all of them and published models often do not.
    """
    names = {"tokenizer": "tokenizers", "chat_template": "chat templates", "special_tokens": "special tokens"}
    for field, words in names.items():
        left, right = getattr(one, field), getattr(other, field)
        if left != right:
            return f"{words} differ ({left[:12]} and {right[:12]})"
    if one.stop_ids is not None and other.stop_ids is not None and one.stop_ids != other.stop_ids:
        if {*one.stop_ids} ^ {*other.stop_ids} <= read_turn_ends():
            return find_other_setting(one.chat, other.chat)
        return f"eos_token_id of generation_config.json differ ({list(one.stop_ids)} and {list(other.stop_ids)})"
    return find_other_setting(one.chat, other.chat)


def find_other_setting(one: JsonObject, other: JsonObject) -> str | None:
    """Return the first chat setting that differs with both values, or None."""
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            values = " and ".join(json.dumps(chat.get(name)) for chat in (one, other))
            return f"chat settings differ: `{name}` is {values}; set it on this stage, or on both models' stages"
    return None


def _read_stop_ids(folder: Path) -> tuple[int, ...] | None:
    named = _read_json(folder / GENERATION).get("eos_token_id")
    if named is None:
        return None
    return tuple(sorted(set(named if isinstance(named, list) else [named])))


def _read_json(file: Path) -> JsonObject:
    return json.loads(file.read_text()) if file.is_file() else {}


def _token_text(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _canonical(value: Any) -> Any:
    """Return a tokenizer's parts in a canonical form, for both spellings of merges and for omitted defaults."""
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if not isinstance(value, dict):
        return value
    canonical = {key: _canonical(item) for key, item in value.items() if item is not None and item is not False}
    if isinstance(merges := canonical.get("merges"), list):
        canonical["merges"] = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges]
    return canonical


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
