"""GGUF files as models: the file format of llama.cpp, with configuration, tokenizer and weights in one file.

transformers reads them. What it would lose in silence is refused here: tensors it leaves out, and scaled rotary
embeddings.
"""

from contextlib import AbstractContextManager
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from transformers import GgufConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata

from learning.models.gguf_reading import quick_reading
from learning.models.gguf_tokenizer import load_gguf_tokenizer
from learning.models.policy import LOADING, UNREADABLE
from schemas.errors import StepError

HEAD_SIZE_OMITTED = ("qwen3", "qwen3moe")
"""Architectures whose head size transformers does not take from the file."""


class GgufFile:
    """A GGUF file as transformers loads it. What reads the file raises StepError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config_options(self) -> dict[str, Any]:
        """Options for the configuration, with sizes that transformers would omit."""
        return make_config_options(self.path)

    @property
    def loading_options(self) -> dict[str, Any]:
        """Options for the weights: quantised blocks become plain tensors, which can be trained."""
        return {**self.config_options, "quantization_config": GgufConfig(dequantize=True)}

    def read_quickly(self) -> AbstractContextManager[None]:
        """Let transformers read the file in a third of the time inside the block, which needs the lock `LOADING`."""
        return quick_reading()

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer of the file."""
        return load_gguf_tokenizer(self.path)

    def read_config(self) -> dict[str, Any]:
        """Return the configuration, as in config.json."""
        name, sizes = self.path.name, self.config_options
        try:
            with LOADING, quick_reading():
                config, _ = PreTrainedConfig.get_config_dict(self.path.parent, gguf_file=name, local_files_only=True)
        except UNREADABLE as error:
            raise StepError(f"{name}: this GGUF file cannot be read: {error}") from error
        return config | {key: value for key, value in sizes.items() if key != "gguf_file"}

    def finish(self, model: PreTrainedModel) -> None:
        """Remove the note that the weights came from quantised ones: they are plain tensors, and saved as such.

        Raise StepError if the model has not all values of the file.
        """
        loaded: Any = model
        loaded.config.__dict__.pop("quantization_config", None)
        loaded.hf_quantizer = None
        loaded.is_quantized = False
        there = {info.name: prod(info.shape) for info in GgufHeader.from_file(str(self.path)).tensors}
        here = sum(parameter.numel() for parameter in model.parameters())
        if sum(there.values()) != here:
            raise StepError(
                f"{self.path.name}: it holds {sum(there.values()):,} values in {len(there)} tensors, of which "
                f"transformers' {model.config.model_type} has {here:,}: the model would not be the same; use its "
                "safetensors"
            )


def make_config_options(file: Path) -> dict[str, Any]:
    """Return transformers' options for configuration and tokenizer of a GGUF file, with sizes that it would omit."""
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
        metadata, _ = read_gguf_metadata(str(file))
        if "general.architecture" not in metadata:
            raise ValueError("it names no architecture")
    except Exception as error:  # the reader follows whatever offsets a file gives, and raises whatever comes of it
        raise StepError(f"{file.name}: no readable GGUF file: {error}") from error
    return metadata
