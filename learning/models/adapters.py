"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) by peft: attaching, merging and saving."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from schemas.errors import StepError
from schemas.training import LoRA


def attach_adapters(model: PreTrainedModel, options: LoRA) -> PeftModel:
    """Return the model with new adapters, its only trainable parameters; raise StepError if a layer does not exist."""
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules=options.lora_target_modules,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        with _current_transformers():
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise StepError(f"lora_target_modules: {error}") from error
    # Only the adapters' own dropout is active: the base computes as in sampling.
    for name, module in adapted.eval().named_modules():
        module.training = "lora_dropout" in name
    return adapted


def fold_adapters(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the base model with the adapters in `folder` merged into its weights."""
    with _current_transformers():
        return PeftModel.from_pretrained(model, folder, torch_device="cpu").merge_and_unload()


def write_adapters(model: PeftModel, folder: Path) -> None:
    """Write the adapters' weights and configuration; equal adapters give equal bytes."""
    weights = {k: v.detach().contiguous().cpu() for k, v in sorted(get_peft_model_state_dict(model).items())}
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict() | {"base_model_name_or_path": None, "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=sorted) + "\n")


@contextmanager
def _current_transformers() -> Iterator[None]:
    """Suppress the warning about a property that peft still reads and transformers has renamed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield


def merge_weights(model: PeftModel) -> dict[str, Tensor]:
    """Return the merged weights, W + ΔW, by their names in the plain model.

    They are new tensors, because merging and unmerging in place would accumulate rounding errors in the base.
    """
    updates = {
        f"{name.removeprefix('base_model.model.')}.weight": layer.get_delta_weight(adapter).detach()  # pyright: ignore[reportAttributeAccessIssue]  # of its subclasses
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLayer)
        for adapter in layer.active_adapters
    }
    plain: dict[str, Tensor] = {}
    for name, tensor in model.get_base_model().state_dict().items():
        if ".lora_" in name:
            continue
        name = name.replace(".base_layer.", ".")
        update = updates.get(name)
        plain[name] = tensor.detach() if update is None else (tensor.detach() + update.to(tensor.dtype))
    return plain
