"""An adapter's folder as a policy: the base model as it was in training, with all adapters over it merged."""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from learning.lookup import load_model_reader
from learning.models.adapters import fold_adapters, list_saved
from learning.models.policy import Policy, find_gguf, find_max_length, load_outline, load_policy, load_tokenizer
from schemas.adapter_base import BASE, BaseRecord, find_plain_base, find_tokenizer_folder, read_record, write_record
from schemas.errors import StepError
from schemas.training import LoRA


class AdapterFolder:
    """The folder of an adapter, with its base in `base/`. Raise StepError if its record of the base is unreadable."""

    def __init__(self, folder: Path):
        self.folder = folder
        try:
            self.record = read_record(folder)
        except ValueError as error:
            raise StepError(f"{folder.name}: its record of the base cannot be read: {error}") from error

    def load(self, dtype: str) -> Policy:
        """Return the policy in `dtype`, with the adapters merged. Raise StepError if it cannot be loaded."""
        below = self.load_base(dtype)
        model: Any = self.fold(below.model)
        if self._has_tokenizer and (self.folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(self.folder)
        return self._make_policy(model, below)

    def load_outline(self, dtype: str) -> Policy:
        """Return the policy without its weights. Raise StepError if the base is not a model."""
        below = load_outline(self.folder / BASE, dtype=dtype)
        return self._make_policy(below.model, below)

    @property
    def _has_tokenizer(self) -> bool:
        """Whether the tokenizer is the adapter's own."""
        return find_tokenizer_folder(self.folder) == self.folder

    def _make_policy(self, model: PreTrainedModel, below: Policy) -> Policy:
        tokenizer = load_tokenizer(self.folder) if self._has_tokenizer else below.tokenizer
        max_length = find_max_length(tokenizer, model)
        return Policy(model.eval(), tokenizer, max_length, origin=below.origin, folder=self.folder)

    def load_base(self, dtype: str) -> Policy:
        """Return the model that was adapted, rounded or quantised as it was in training and then converted to `dtype`.

        Raise StepError if a file is missing.
        """
        plain = find_plain_base(self.folder)
        needed = [] if find_gguf(plain) else [plain / "config.json"]
        for file in (*needed, self.folder / "adapter_model.safetensors"):
            if not file.is_file():
                raise StepError(f"{self.folder.name}: no model here, {file.relative_to(self.folder)} is missing")
        trained = self.record.dtype if self.record else dtype
        base = load_policy(self.folder / BASE, dtype=trained)
        if self.record and self.record.bnb_4bit_quant_type:
            load_model_reader("quantised")(base.model, self.record, list_saved(self.folder))
        if trained != dtype:
            _convert(base.model, getattr(torch, dtype))
        return base

    def fold(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return a base model with the adapters merged into its weights. Raise StepError if they do not fit it."""
        return fold_adapters(model, self.folder)


def refer_to_base(policy: Policy, base: Path, folder: Path, options: LoRA) -> None:
    """Make `base/` of an adapter's folder a link to the folder that the policy was loaded from."""
    (folder / BASE).symlink_to(base.resolve(), target_is_directory=True)
    quantised = "quantise" in options.optional_code()
    record = BaseRecord(
        dtype=str(policy.model.dtype).removeprefix("torch."),
        bnb_4bit_quant_type=options.bnb_4bit_quant_type if quantised else None,
        use_bnb_nested_quant=options.use_bnb_nested_quant if quantised else None,
    )
    write_record(folder, record)


def _convert(model: Any, dtype: torch.dtype) -> None:
    """Change the precision of a model's weights, but for those that transformers keeps in float32."""
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    for name, parameter in model.named_parameters():
        if not kept & set(name.split(".")):
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
