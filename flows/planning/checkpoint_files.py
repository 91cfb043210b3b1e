"""Files of a checkpoint that are there and damaged, or do not belong together: weights, tokenizer, chat template."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

from flows.planning.stored_tensors import find_wrong_tensor
from learning.models.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from schemas.adapter_base import find_plain_base, find_tokenizer_folder
from schemas.base import JsonObject
from schemas.steps.chat_template import find_syntax_error

TEMPLATE = "chat_template.jinja"
QUANTISED_BY = {"gptq": "optimum", "awq": "awq"}
"""Package that loads weights of a quantisation, by `quant_method`."""
ELSEWHERE = "additional_chat_templates"
PEFT_PREFIX = "base_model.model."
"""What peft puts before the names of modules."""


def find_damaged_file(folder: Path) -> str | None:
    """Return which file of a checkpoint is damaged and what to do; None if weights and tokenizer can be read."""
    base, with_tokenizer = find_plain_base(folder), find_tokenizer_folder(folder)
    for file in sorted(base.glob("*.safetensors")):
        if text := _find_cut(file):
            return text
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if text := _find_unreadable(with_tokenizer / name):
            return text
    if text := _find_quantisation(base) or find_wrong_tensor(base) or _find_adapter_misfit(folder, base):
        return text
    return _find_small_vocabulary(base, with_tokenizer) or _find_template_problem(with_tokenizer)


def lacks_chat_template(folder: Path) -> bool:
    """Return whether a checkpoint with a tokenizer of its own has no chat template."""
    folder = find_tokenizer_folder(folder)
    if not (folder / "tokenizer_config.json").is_file() or (folder / ELSEWHERE).is_dir():
        return False
    return not (folder / TEMPLATE).is_file() and not _read(folder / "tokenizer_config.json").get("chat_template")


def _find_cut(file: Path) -> str | None:
    """Return that a safetensors file is shorter than its header says."""
    try:
        tensors = _read_header(file)
        end = max((one["data_offsets"][1] for one in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return f"{file.name}: its header cannot be read; fetch it again"
    size, whole = file.stat().st_size, _count_header(file) + end
    return f"{file.name} is cut off: {size:,} of {whole:,} bytes; fetch it again" if tensors and size < whole else None


def _count_header(file: Path) -> int:
    """Return the bytes before the tensors; those of the length alone for what is no safetensors file."""
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
    return 8 + length if 0 < length <= file.stat().st_size - 8 else 8


def _read_header(file: Path) -> dict[str, JsonObject]:
    """Return the tensors of a safetensors file; none for another file, which is reported with the missing ones."""
    with file.open("rb") as handle:
        tensors = json.loads(handle.read(_count_header(file))[8:] or b"{}")
    return {name: one for name, one in tensors.items() if name != "__metadata__"}


def _find_adapter_misfit(folder: Path, base: Path) -> str | None:
    """Return which matrix of an adapter has no pair, or does not fit the weights of its base.

    Modules that the base's files do not name are not judged unless they have siblings in other layers: experts and
    models with towers have other names in files than in memory.
    """
    own, files = folder / ADAPTER_WEIGHTS, sorted(base.glob("*.safetensors"))
    if not own.is_file() or not files or _read(base / "config.json").get("quantization_config"):
        return None
    settings = _read(folder / ADAPTER_CONFIG)
    rank = None if settings.get("rank_pattern") else settings.get("r")
    try:
        below = {name: one["shape"] for file in files for name, one in _read_header(file).items()}
        matrices = {name.removeprefix(PEFT_PREFIX): one["shape"] for name, one in _read_header(own).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # reported with the files
    layers = {re.sub(r"\.\d+\.", ".N.", name) for name in below}
    for name, shape in matrices.items():
        module, mark, _ = name.partition(".lora_A.")
        if not mark or len(shape) != 2:
            continue
        weight, up = f"{module}.weight", matrices.get(name.replace(".lora_A.", ".lora_B."))
        if up is None:
            return f"{own.name} has no lora_B for {module}; save the adapter again"
        if shape[0] != up[1] or (isinstance(rank, int) and rank != shape[0]):
            ranks = f"{shape[0]} and {up[1]}, {ADAPTER_CONFIG} says r: {rank}"
            return f"{own.name}: the matrices for {module} have the ranks {ranks}; save the adapter again"
        if weight not in below and re.sub(r"\.\d+\.", ".N.", weight) in layers:
            return f"{own.name} is for another base: it adapts {module}, which this one does not have"
        if weight in below and sorted((up[0], shape[1])) != sorted(below[weight]):
            size, needed = " x ".join(map(str, (up[0], shape[1]))), " x ".join(map(str, below[weight]))
            return f"{own.name} is for another base: its matrices for {module} make {size}, the weights are {needed}"
    return None


def _find_unreadable(file: Path) -> str | None:
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        return f"{file.name} cannot be read: {error}; fetch it again"
    if not isinstance(content, dict):
        return f"{file.name} holds no JSON object; fetch it again"
    if file.name == "tokenizer.json" and not isinstance(content.get("model"), dict):
        return "tokenizer.json has no `model`; save it again: tokenizer.save_pretrained(folder)"
    return None


def _find_quantisation(base: Path) -> str | None:
    """Return that weights are quantised in a way whose library is not installed."""
    settings = _read(base / "config.json").get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    library = QUANTISED_BY.get(method) if isinstance(method, str) else None
    if library is None or find_spec(library) is not None:
        return None
    return f"its weights are quantised by {method}, which needs {library}; name the whole model, or a GGUF file"


def _find_small_vocabulary(base: Path, with_tokenizer: Path) -> str | None:
    """Return that a tokenizer has ids beyond the model's vocabulary.

    Of added tokens only those count that texts will contain: published tokenizers list special ones of other members
    of their family (`<image_soft_token>` in Gemma 3's models of text).
    """
    config = _read(base / "config.json")
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    tokenizer = _read(with_tokenizer / "tokenizer.json")
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    if not isinstance(size, int) or not isinstance(vocabulary, dict | list) or not vocabulary:
        return None
    largest = max(vocabulary.values()) if isinstance(vocabulary, dict) else len(vocabulary) - 1
    if largest < size:
        return _find_added_beyond(tokenizer, size, with_tokenizer)
    return f"tokenizer.json has ids up to {largest}, config.json a `vocab_size` of {size}: they are of different models"


def _find_added_beyond(tokenizer: JsonObject, size: int, folder: Path) -> str | None:
    """Return that a token was added to a tokenizer, and the model has no row for it."""
    settings, template = _read(folder / "tokenizer_config.json"), folder / TEMPLATE
    named = [settings.get(f"{name}_token") for name in ("bos", "eos", "pad", "unk")]
    named = [one.get("content") if isinstance(one, dict) else one for one in named]
    text = template.read_text(errors="replace") if template.is_file() else str(settings.get("chat_template"))
    for token in tokenizer.get("added_tokens") or []:
        content, number = (token.get("content"), token.get("id")) if isinstance(token, dict) else (None, None)
        if not isinstance(content, str) or not isinstance(number, int) or number < size:
            continue
        if content in named or content in text or not token.get("special"):
            return (
                f"tokenizer.json gives the added token {content!r} the id {number}, config.json has a `vocab_size` of "
                f"{size}; resize the model: model.resize_token_embeddings(len(tokenizer)), and save it again"
            )
    return None


def _find_template_problem(folder: Path) -> str | None:
    """Return what is wrong with a chat template, with its line."""
    file = folder / TEMPLATE
    own = _read(folder / "tokenizer_config.json").get("chat_template")
    name, text = (TEMPLATE, file.read_text(errors="replace")) if file.is_file() else ("tokenizer_config.json", own)
    if not isinstance(text, str) or (wrong := find_syntax_error(text)) is None:
        return None
    return f"{name}: no valid chat template, {wrong}; give another: `chat_template:`"


def _read(file: Path) -> JsonObject:
    try:
        content = json.loads(file.read_text()) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
