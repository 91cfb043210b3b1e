"""Byte-level BPE tokenizers in GGUF files: written, and read back with the same ids.

transformers reads them with the tokenizer class of the architecture, which has rules and special tokens of its own;
here the file alone decides, as in llama.cpp.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFWriter
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import get_gguf_tokenizer
from transformers.integrations.gguf.reader import read_gguf_metadata

from schemas.errors import StepError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""llama.cpp's types of tokens."""
BYTE_LEVEL = "gpt2"
"""llama.cpp's name of byte-level BPE."""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": lambda: _split_by(LLAMA3),
    "qwen2": lambda: _split_by(QWEN2),
}
"""Pre-tokenizers by llama.cpp's name."""
NFC = ("qwen2",)
"""Those whose published tokenizers compose characters (Unicode NFC) first."""


def load_gguf_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a GGUF file; kinds that are not written here are read by transformers."""
    metadata, _ = read_gguf_metadata(str(file), ("tokenizer.ggml.token_type",))
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if metadata.get("tokenizer.ggml.model") != BYTE_LEVEL or pre not in SPLITS:
        return PreTrainedTokenizerFast.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    _, fields, named = get_gguf_tokenizer(str(file))
    tokens = fields["tokens"]
    kinds = fields.get("token_type") or [NORMAL] * len(tokens)
    merges = [tuple(merge.split(" ", 1)) for merge in fields["merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = SPLITS[pre]()  # pyright: ignore[reportAttributeAccessIssue]  # a property in Rust
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    if pre in NFC:
        tokenizer.normalizer = normalizers.NFC()  # pyright: ignore[reportAttributeAccessIssue]
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **named)


def add_tokenizer(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Write a byte-level BPE tokenizer with its special tokens and chat template; raise StepError for other kinds."""
    backend: Any = tokenizer
    machine = json.loads(backend.backend_tokenizer.to_str())
    model = machine["model"]
    if model["type"] != "BPE" or (machine["decoder"] or {}).get("type") != "ByteLevel":
        raise StepError(
            f"GGUF: a {model['type']} tokenizer cannot be written, only byte-level BPE ones; `posttrain export hf` "
            "writes any"
        )
    added = {token["id"]: token for token in machine["added_tokens"]}
    by_id = {token_id: token for token, token_id in model["vocab"].items()}
    tokens, types = [], []
    for i in range(size):
        special = added.get(i)
        if special is not None:
            tokens.append(special["content"])
            types.append(CONTROL if special["special"] else USER_DEFINED)
        else:
            tokens.append(by_id.get(i, f"[PAD{i}]"))
            types.append(NORMAL if i in by_id else UNUSED)
    writer.add_tokenizer_model(BYTE_LEVEL)
    writer.add_tokenizer_pre(name_split(machine))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    named: list[tuple[Any, Callable[[int], None]]] = [
        (tokenizer.bos_token_id, writer.add_bos_token_id),
        (tokenizer.eos_token_id, writer.add_eos_token_id),
        (tokenizer.pad_token_id, writer.add_pad_token_id),
        (tokenizer.unk_token_id, writer.add_unk_token_id),
    ]
    for token_id, add in named:
        if token_id is not None:
            add(token_id)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(str(tokenizer.chat_template))


def name_split(machine: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of a tokenizer's splitting rule; raise StepError if it has none."""
    described = _describe(machine["pre_tokenizer"])
    normalizer = (machine["normalizer"] or {}).get("type")
    for name, make in SPLITS.items():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = make()  # pyright: ignore[reportAttributeAccessIssue]
        if _describe(json.loads(tokenizer.to_str())["pre_tokenizer"]) == described:
            if normalizer == ("NFC" if name in NFC else None):
                return name
            raise StepError(f"GGUF: a tokenizer split as `{name}` with the normalizer {normalizer} cannot be written")
    kinds = ", ".join(part["type"] for part in described)
    raise StepError(f"GGUF: llama.cpp has no name for this pre-tokenizer ({kinds}); `posttrain export hf` writes any")


def _describe(pre_tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a pre-tokenizer without settings that only concern offsets."""
    parts = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    return [{key: value for key, value in part.items() if key not in ("trim_offsets", "invert")} for part in parts]
