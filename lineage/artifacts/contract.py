"""The contract between stages: fingerprints that models of later stages must share, read from a model's files."""

import hashlib
import json
from pathlib import Path
from typing import Any

from schemas.base import JsonObject
from schemas.manifest import Contract

UNBOUNDED = 2**31
"""Maximum length in tokens of a model whose files state no limit."""


def read_contract(folder: Path) -> Contract | None:
    """Return the contract of a model folder (or of an adapter's base), or None if it holds no tokenizer."""
    folder = folder / "base" if (folder / "base" / "tokenizer.json").is_file() else folder
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer, settings = _read_json(folder / "tokenizer.json"), _read_json(folder / "tokenizer_config.json")
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text() if template_file.is_file() else settings.get("chat_template") or ""
    machine = {k: tokenizer.get(k) for k in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")}
    special = [[t["id"], t["content"]] for t in tokenizer.get("added_tokens", []) if t.get("special")]
    named = {k: _token_text(settings.get(k)) for k in ("bos_token", "eos_token", "pad_token", "unk_token")}
    limits = [settings.get("model_max_length"), _read_json(folder / "config.json").get("max_position_embeddings")]
    return Contract(
        tokenizer=_hash_json(_canonical(machine)),
        chat_template=_hash_json(template),
        special_tokens=_hash_json([sorted(special), named]),
        max_length=int(min([n for n in limits if n], default=UNBOUNDED)),
    )


def find_disagreement(one: Contract, other: Contract) -> str | None:
    """Return which fingerprint of two contracts differs, or None if the models fit; lengths may differ."""
    names = {"tokenizer": "tokenizers", "chat_template": "chat templates", "special_tokens": "special tokens"}
    for field, words in names.items():
        left, right = getattr(one, field), getattr(other, field)
        if left != right:
            return f"{words} differ ({left[:12]} and {right[:12]})"
    return None


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
