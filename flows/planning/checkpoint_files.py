"""Files of a checkpoint that are there and damaged, or do not belong together: weights, tokenizer, chat template."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

from schemas.adapter_base import find_plain_base, find_tokenizer_folder
from schemas.base import JsonObject

TEMPLATE = "chat_template.jinja"
GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
"""transformers' own tags, which plain Jinja does not know."""
QUANTISED_BY = {"gptq": "optimum", "awq": "awq"}
"""Package that loads weights of a quantisation, by `quant_method`."""
ELSEWHERE = "additional_chat_templates"


def find_damaged_file(folder: Path) -> str | None:
    """Return which file of a checkpoint is damaged and what to do; None if weights and tokenizer can be read."""
    base, with_tokenizer = find_plain_base(folder), find_tokenizer_folder(folder)
    for file in sorted(base.glob("*.safetensors")):
        if text := _find_cut(file):
            return text
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if text := _find_unreadable(with_tokenizer / name):
            return text
    if text := _find_quantisation(base):
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
    size = file.stat().st_size
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if not 0 < length <= size - 8:
            return None  # reported with the other files of weights
        try:
            tensors = json.loads(handle.read(length))
            end = max((one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return f"{file.name}: its header cannot be read; fetch it again"
    whole = 8 + length + end
    return f"{file.name} is cut off: {size:,} of {whole:,} bytes; fetch it again" if size < whole else None


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
    """Return that a tokenizer has ids beyond the model's vocabulary, added tokens left aside."""
    config = _read(base / "config.json")
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    vocabulary = (_read(with_tokenizer / "tokenizer.json").get("model") or {}).get("vocab")
    if not isinstance(size, int) or not isinstance(vocabulary, dict | list) or not vocabulary:
        return None
    largest = max(vocabulary.values()) if isinstance(vocabulary, dict) else len(vocabulary) - 1
    if largest < size:
        return None
    return f"tokenizer.json has ids up to {largest}, config.json a `vocab_size` of {size}: they are of different models"


def _find_template_problem(folder: Path) -> str | None:
    """Return what is wrong with the syntax of a chat template, with its line."""
    from jinja2 import Environment, TemplateSyntaxError

    file = folder / TEMPLATE
    own = _read(folder / "tokenizer_config.json").get("chat_template")
    name, text = (TEMPLATE, file.read_text(errors="replace")) if file.is_file() else ("tokenizer_config.json", own)
    if not isinstance(text, str):
        return None
    try:
        Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]).parse(GENERATION.sub("", text))
    except TemplateSyntaxError as error:
        return f"{name}: no valid chat template, line {error.lineno}: {error.message}; give another: `chat_template:`"
    return None


def _read(file: Path) -> JsonObject:
    try:
        content = json.loads(file.read_text()) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
