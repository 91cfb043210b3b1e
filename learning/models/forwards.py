"""Compute options of a model's blocks: bfloat16 autocast over float32 weights, and gradient checkpointing.

Both are set on modules, so that training, sampling and copies of the model agree; parameter names do not change.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from schemas.training import Training


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch off every module in training mode, such as the dropout of adapters, and the same ones on again."""
    active = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in active:
            module.training = True


def keep_score_caps(model: Any) -> None:
    """Switch a model with capped attention scores to transformers' eager attention, since its SDPA ignores the caps."""
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")


def without_adapters(model: Any) -> AbstractContextManager[None]:
    """Return a context in which a model computes without its adapters, if it has any."""
    return model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()


def apply_compute_options(model: nn.Module, training: Training) -> None:
    """Apply the options `bf16` and `gradient_checkpointing` to a model."""
    wrapped: Any = model
    plain = wrapped.get_base_model() if hasattr(model, "get_base_model") else wrapped
    if training.bf16:
        for module in (plain.base_model, plain.get_output_embeddings()):
            if module is not None:
                module.forward = MethodType(_in_bfloat16, module)
    if training.gradient_checkpointing:
        # The last block's backward pass comes first: recomputing it would save no memory.
        for block in find_blocks(model)[:-1]:
            block.forward = MethodType(recompute_block, block)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformer, in order; empty if transformers does not mark them."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _in_bfloat16(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    device = next(self.parameters()).device.type
    with torch.autocast(device, torch.bfloat16):
        return type(self).forward(self, *args, **kwargs)


def recompute_block(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a block and keep only its inputs; the backward pass recomputes it (Chen et al. 2016, arXiv 1604.06174)."""
    if not torch.is_grad_enabled():
        return type(self).forward(self, *args, **kwargs)
    how: dict[str, Any] = {"use_reentrant": False, "context_fn": _as_now(self)}
    return checkpoint(type(self).forward, self, *args, **how, **kwargs)


def _as_now(block: nn.Module) -> Callable[[], tuple[AbstractContextManager, AbstractContextManager]]:
    """Return contexts of the forward pass and of its recomputation, which uses the same attention implementation."""
    config: Any = next(module.config for module in block.modules() if hasattr(module, "config"))
    name = config._attn_implementation

    @contextmanager
    def again() -> Iterator[None]:
        before = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = before

    return lambda: (nullcontext(), again())


def fill_buffers(model: Any) -> None:
    """Compute the buffers that are in no file (tables of rotary embeddings) of a model without values, on the CPU."""
    for module in model.modules():
        module._is_hf_initialized = False
    # The two steps by which `from_pretrained` makes these buffers; parameters have no values and stay without.
    model._move_missing_keys_from_meta_to_device(set(), {"": "cpu"}, None, None)
    model._initialize_missing_keys(False)
