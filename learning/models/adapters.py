"""Low-rank adapters by peft: attaching, merging, saving, loading.

LoRA: Hu et al. 2021 (arXiv 2106.09685); rank-stabilised: Kalajdzievski 2023 (2312.03732); DoRA: Liu et al. 2024
(2402.09353). peft computes them all; what is checked here is that it adapts exactly the modules that were asked for.
"""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils.other import ModulesToSaveWrapper
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from learning.models.adapter_targets import TargetError, Targets, find_targets, is_tied, list_language_modules
from learning.models.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, find_adapter_problem
from schemas.errors import StepError
from schemas.training import ALL_LINEAR, LoRA

PRODUCTS = 1024
"""Rows of a quantised layer's products that are computed at once."""


def attach_adapters(model: PreTrainedModel, options: LoRA) -> PeftModel:
    """Return the model with new adapters, which alone are trainable with `modules_to_save` and a classifier's head.

    Raise StepError if a module does not exist or cannot be adapted.
    """
    try:
        targets = find_targets(model, options)
    except TargetError as error:
        raise StepError(f"{error.option}: {error}") from error
    config = LoraConfig(
        task_type="SEQ_CLS" if type(model).__name__.endswith("ForSequenceClassification") else "CAUSAL_LM",
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules=_name_targets(model, options, targets),
        use_rslora=options.use_rslora,
        use_dora=options.use_dora,
        modules_to_save=sorted(targets.saved) or None,
        ensure_weight_tying=targets.tied,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        with _current_transformers():
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise StepError(f"lora_target_modules: {error}") from error
    if (lists := (_list_adapted(adapted), _list_saved(adapted))) != (targets.adapted, targets.saved):
        wrong = sorted((lists[0] ^ targets.adapted) | (lists[1] ^ targets.saved))
        raise StepError(f"lora_target_modules: peft would adapt other modules than those named: {', '.join(wrong)}")
    # Only the adapters' own dropout is active: the base computes as in sampling.
    for name, module in adapted.eval().named_modules():
        module.training = "lora_dropout" in name
    return adapted


def _name_targets(model: PreTrainedModel, options: LoRA, targets: Targets) -> list[str] | str:
    """Return what peft is given: given `all-linear`, it would also adapt towers and routers, and replace experts."""
    towers = {*model.modules()} - list_language_modules(model) - {model}
    has_towers = any(isinstance(module, PreTrainedModel) for module in towers)
    has_stacked_experts = any(parameter.ndim == 3 for parameter in model.parameters())
    if options.lora_target_modules == ALL_LINEAR and (has_towers or has_stacked_experts):
        return sorted(targets.adapted)
    return options.lora_target_modules


def _list_adapted(model: PeftModel) -> set[str]:
    named = model.get_base_model().named_modules(remove_duplicate=False)
    return {name for name, module in named if isinstance(module, LoraLayer)}


def _list_saved(model: PeftModel) -> set[str]:
    named = model.get_base_model().named_modules(remove_duplicate=False)
    return {name for name, module in named if isinstance(module, ModulesToSaveWrapper)}


def list_saved(folder: Path) -> list[str]:
    """Return the names of the modules that an adapter's folder holds whole."""
    return list(json.loads((folder / ADAPTER_CONFIG).read_text()).get("modules_to_save") or [])


def fold_adapters(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the base model with the adapters in `folder` merged into its weights.

    Raise StepError if they cannot be merged, or were trained over another base.
    """
    task = "SEQ_CLS" if type(model).__name__.endswith("ForSequenceClassification") else "CAUSAL_LM"
    if problem := find_adapter_problem(folder, task):
        raise StepError(f"{folder.name}: {problem}")
    try:
        stored = load_file(folder / ADAPTER_WEIGHTS)
        if _adapts_an_end(stored):
            _untie(model)
        with _current_transformers():
            adapted = PeftModel.from_pretrained(model, folder, torch_device="cpu")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise StepError(f"{folder.name}: its base is not the model that it was trained over: {error}") from error
    expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    if wrong := sorted((expected - set(stored)) | (set(stored) - expected - set(adapted.state_dict()))):
        raise StepError(
            f"{folder.name}: its base is not the model that it was trained over, {len(wrong)} tensors differ, first "
            f"{wrong[0]}; put the right one into its folder as `base`"
        )
    merged: Any = adapted.merge_and_unload()
    if merged.get_output_embeddings() is not None and not is_tied(merged):
        _forget_tie(merged)
    return merged


def _adapts_an_end(stored: Mapping[str, Tensor]) -> bool:
    """Return whether adapters change the embedding or the head, of which a tied model has one copy for both."""
    return any(".lora_embedding_" in name or ".lm_head.lora_" in name for name in stored)


def _untie(model: Any) -> None:
    """Give a tied head weights of its own."""
    if is_tied(model):
        head = model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        _forget_tie(model)


def _forget_tie(model: Any) -> None:
    model.config.get_text_config().tie_word_embeddings = False
    model.config.tie_word_embeddings = False
    model.all_tied_weights_keys = {}


def write_adapters(model: PeftModel, folder: Path) -> None:
    """Write the adapters' weights and configuration; equal adapters give equal bytes."""
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {k: v.detach().contiguous().cpu() for k, v in sorted(state.items())}
    save_file(_drop_aliases(weights), folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict() | {"base_model_name_or_path": None, "inference_mode": True}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True, default=sorted) + "\n")


def _drop_aliases(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with storage of their own: a tied head is a copy of its embedding, as peft saves it."""
    places: set[int] = set()
    separate = {}
    for name, tensor in weights.items():
        separate[name] = tensor.clone() if tensor.data_ptr() in places else tensor
        places.add(tensor.data_ptr())
    return separate


def remove_adapters(model: PeftModel) -> PreTrainedModel:
    """Return the base model as it was before adapters were attached; `model` cannot be used afterwards."""
    for wrapper in model.modules():
        if isinstance(wrapper, ModulesToSaveWrapper):  # unloading would leave the trained module
            for name in list(wrapper.modules_to_save):
                wrapper.modules_to_save[name] = wrapper.original_module
    plain: Any = model.unload()
    return plain


@contextmanager
def _current_transformers() -> Iterator[None]:
    """Suppress warnings: of a property that transformers has renamed, and of what is checked here."""
    with warnings.catch_warnings():
        for text in (".*tie_word_embeddings", "Found missing adapter keys", ".*ensure_weight_tying"):
            warnings.filterwarnings("ignore", text, UserWarning)
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield


def merge_weights(model: PeftModel) -> dict[str, Tensor]:
    """Return the weights with adapters merged, by their names in the plain model.

    Merged weights are new tensors, because merging and unmerging in place would accumulate rounding errors in the base.
    Quantised weights become plain ones.
    """
    base: Any = model.get_base_model()
    named = base.named_modules(remove_duplicate=False)
    adapted = {name: module for name, module in named if _is_changed(name, module)}
    plain: dict[str, Tensor] = {}
    merged: set[str] = set()
    for name, tensor in base.state_dict().items():
        owner = next((above for above in _list_owners(name) if above in adapted), None)
        if owner is None:
            plain[name] = tensor.detach()
        elif owner not in merged:
            merged.add(owner)
            plain |= {f"{owner}.{key}": whole for key, whole in _merge_module(adapted[owner]).items()}
    return plain


def _is_changed(name: str, module: nn.Module) -> bool:
    """Return whether the weights of a module are others than the plain model's: adapted, trained whole or quantised."""
    if isinstance(module, LoraLayer | ModulesToSaveWrapper):
        return True
    return _is_quantised(module) and not name.endswith(".base_layer")


def _is_quantised(layer: Any) -> bool:
    return hasattr(getattr(layer, "weight", None), "quant_state")


def _list_owners(name: str) -> Iterator[str]:
    """Yield the dotted names of the modules around a tensor, the innermost first."""
    while dot := name.rpartition(".")[0]:
        yield dot
        name = dot


def _merge_module(module: Any) -> dict[str, Tensor]:
    """Return the weights that an adapted module amounts to, or those of one that is trained whole."""
    if isinstance(module, ModulesToSaveWrapper):
        (name,) = module.active_adapters
        return {key: tensor.detach() for key, tensor in module.modules_to_save[name].state_dict().items()}
    alone = deepcopy(module)
    if _is_quantised(alone):
        return _read_products(alone)
    alone.merge()
    return {key: tensor.detach() for key, tensor in alone.get_base_layer().state_dict().items()}


@torch.no_grad()
def _read_products(layer: Any) -> dict[str, Tensor]:
    """Return the weights of a plain layer that computes what a quantised one does: its products with unit vectors.

    Merging into the quantised weights would quantise the sum again.
    """
    layer.eval()
    base = layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer
    bias, base.bias = base.bias, None
    unit_KK = torch.eye(base.in_features, dtype=base.compute_dtype, device=base.weight.device)
    weight_NK = torch.cat([layer(rows) for rows in unit_KK.split(PRODUCTS)]).T.contiguous()
    return {"weight": weight_NK} | ({} if bias is None else {"bias": bias.detach()})
