"""GGUF files as models: the file format of llama.cpp, with configuration, tokenizer and weights in one file.

transformers reads them. What it would lose in silence is refused here: tensors it leaves out, and scaled rotary
embeddings.
"""

from math import prod
from pathlib import Path
from typing import Any

from transformers import GgufConfig, PreTrainedConfig, PreTrainedModel
from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata

from schemas.errors import StepError

SUFFIX = ".gguf"
UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, NotImplementedError, OverflowError)
"""What transformers raises for files that are cut short, and for architectures that it does not know."""
HEAD_SIZE_OMITTED = ("qwen3", "qwen3moe")
"""Architectures whose head size transformers does not take from the file."""


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file that is the model of a folder; None if the folder has a config.json or no GGUF file.

    Raise StepError if there are several: a folder is one model.
    """
    if (folder / "config.json").is_file():
        return None
    files = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise StepError(f"{folder.name}: {len(files)} GGUF files ({names}); name one of them: path:./FILE.gguf")
    return files[0] if files else None


def make_config_options(file: Path | None) -> dict[str, Any]:
    """Return transformers' options for configuration and tokenizer of a GGUF file, with sizes that it would omit."""
    if file is None:
        return {}
    metadata = read_metadata(file)
    kind = metadata["general.architecture"]
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        raise StepError(f"{file.name}: transformers loses the scaling ({scaling}) of rotary embeddings in GGUF files")
    options: dict[str, Any] = {"gguf_file": file.name}
    if kind in HEAD_SIZE_OMITTED:
        options["head_dim"] = metadata[f"{kind}.attention.key_length"]
    if f"{kind}.expert_feed_forward_length" in metadata and kind == "qwen3moe":
        options["moe_intermediate_size"] = metadata[f"{kind}.expert_feed_forward_length"]
    return options


def read_metadata(file: Path) -> dict[str, Any]:
    """Return the metadata of a GGUF file, long arrays as their lengths; raise StepError if it is none."""
    try:
        found, _ = read_gguf_metadata(str(file))
        if "general.architecture" not in found:
            raise ValueError("it names no architecture")
    except Exception as error:  # the reader follows whatever offsets a file gives, and raises whatever comes of it
        raise StepError(f"{file.name}: no readable GGUF file: {error}") from error
    return found


def make_dequantization(file: Path | None) -> dict[str, Any]:
    """Return transformers' loading options that turn quantised blocks into plain tensors, which can be trained."""
    return {"quantization_config": GgufConfig(dequantize=True)} if file else {}


def read_gguf_config(file: Path) -> dict[str, Any]:
    """Return the configuration of a GGUF file, as in config.json; raise StepError if transformers cannot read it."""
    options = make_config_options(file)
    try:
        found, _ = PreTrainedConfig.get_config_dict(file.parent, gguf_file=options["gguf_file"], local_files_only=True)
    except UNREADABLE as error:
        raise StepError(f"{file.name}: this GGUF file cannot be read: {error}") from error
    return found | {name: value for name, value in options.items() if name != "gguf_file"}


def finish_gguf(model: PreTrainedModel, file: Path) -> None:
    """Remove the note that the weights came from quantised ones: they are plain tensors, and saved as such.

    Raise StepError if the model has not all values of the file.
    """
    loaded: Any = model
    loaded.config.__dict__.pop("quantization_config", None)
    loaded.hf_quantizer = None
    loaded.is_quantized = False
    there = {info.name: prod(info.shape) for info in GgufHeader.from_file(str(file)).tensors}
    here = sum(parameter.numel() for parameter in model.parameters())
    if sum(there.values()) != here:
        raise StepError(
            f"{file.name}: it holds {sum(there.values()):,} values in {len(there)} tensors, of which transformers' "
            f"{model.config.model_type} has {here:,}: the model would not be the same; use its safetensors"
        )
