"""How the blocks of a model compute: in bfloat16 over float32 weights, and without keeping what they can compute again.

Both are put on modules, so that training, sampling and copies of the model agree; names of parameters stay.
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
    """Switch a model to evaluation, and back."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def apply_compute_options(model: nn.Module, training: Training) -> None:
    """Let a model compute as `bf16` and `gradient_checkpointing` say."""
    wrapped: Any = model
    plain = wrapped.get_base_model() if hasattr(model, "get_base_model") else wrapped
    if training.bf16:
        for module in (plain.base_model, plain.get_output_embeddings()):
            if module is not None:
                module.forward = MethodType(_in_bfloat16, module)
    if training.gradient_checkpointing:
        # The last block's backward pass comes first: to compute it again would save nothing.
        for block in find_blocks(model)[:-1]:
            block.forward = MethodType(_computed_again, block)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformer, in order; empty where transformers does not mark them."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _in_bfloat16(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    device = next(self.parameters()).device.type
    with torch.autocast(device, torch.bfloat16):
        return type(self).forward(self, *args, **kwargs)


def _computed_again(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Keep only the inputs (Chen et al. 2016, arXiv 1604.06174)."""
    if not torch.is_grad_enabled():
        return type(self).forward(self, *args, **kwargs)
    how: dict[str, Any] = {"use_reentrant": False, "context_fn": _as_now(self)}
    return checkpoint(type(self).forward, self, *args, **how, **kwargs)


def _as_now(block: nn.Module) -> Callable[[], tuple[AbstractContextManager, AbstractContextManager]]:
    """Return contexts of both computations: the second, in the backward pass, with the attention of the first."""
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
