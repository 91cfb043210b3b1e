"""Routing replay for mixtures of experts: the update uses recorded choices of experts.

Between sampling and training, and between two optimiser steps, a router may choose other experts for the same token, so
that the policy and its ratios change discontinuously. With replay, the choice of experts is recorded, while their
weights are still computed by the router and carry its gradient (Zheng et al. 2025, arXiv:2512.01374, section 3.2).
R2 records the trainer's choice before the update, R3 the rollout engine's.

Shapes: M packed tokens, L layers with a router, K experts of a token, E experts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from learning.batch.batch import Batch
from learning.batch.micro_batches import split_micro_batches
from learning.models.forwards import unwrap
from learning.models.packed import choose_forward, packed_hidden
from learning.parallel.group import ALONE, Each
from schemas.errors import StepError


def find_routers(model: nn.Module) -> list[nn.Module]:
    """Return the routers of a model in the order of its layers, for Mixtral, Qwen-MoE and similar architectures.

    A router's output is (logits (M, E), weights (M, K), indices (M, K)). Raise StepError if the model has no router.
    """
    routers = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter") and hasattr(m, "top_k")]
    if not routers:
        kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise StepError(
            f"routing replay: {kind} has no routers to replay; leave `routing_replay` out for a dense model"
        )
    return routers


@contextmanager
def record_routing(model: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list to which forward passes append the indices (M, K) chosen by each router, in the order of layers."""
    choose_forward(unwrap(model))  # its own forward passes must not be recorded
    choices: list[Tensor] = []
    hooks = [r.register_forward_hook(lambda _, __, out: choices.append(out[2].detach())) for r in find_routers(model)]
    try:
        yield choices
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def replay_routing(model: nn.Module, experts_MLK: Tensor) -> Iterator[None]:
    """Make forward passes use the recorded experts.

    The forward pass raises StepError if the record has another number of tokens or experts.
    """
    choose_forward(unwrap(model))  # its own forward passes are of other tokens than the record
    hooks = [
        router.register_forward_hook(_chosen(experts_MLK[:, layer])) for layer, router in enumerate(find_routers(model))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _chosen(indices_MK: Tensor) -> Any:
    """Return a hook that replaces a router's choice by the record."""

    def hook(router: nn.Module, _: Any, out: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits_ME, weights_MK, own_MK = out
        if own_MK.shape != indices_MK.shape:
            raise StepError(f"routing replay: a record of {tuple(indices_MK.shape)} for {tuple(own_MK.shape)} choices")
        chosen_MK = indices_MK.to(own_MK.device)
        share_MK = logits_ME.float().softmax(-1).gather(1, chosen_MK)
        if getattr(router, "norm_topk_prob", True):
            share_MK = share_MK / share_MK.sum(-1, keepdim=True)
        return logits_ME, share_MK.to(weights_MK.dtype), chosen_MK

    return hook


@torch.no_grad()
def add_expert_column(batch: Batch, model: PreTrainedModel, *, max_tokens: int, each: Each = ALONE.each) -> Batch:
    """Return the batch with the token column `experts` (M, L, K): the routers' current choices, prompts included.

    `each` distributes the forward passes over the ranks of a group.
    """
    routers_of = find_routers(model)

    def forward(micro: Batch) -> Tensor:
        with record_routing(model) as choices:
            packed_hidden(model, micro.packed.to(model.device))
        return torch.stack(choices, 1).cpu()

    top_k = int(cast(int, routers_of[0].top_k))
    shape = (len(batch.tokens["learn"]), len(routers_of), top_k)
    experts_MLK = torch.zeros(shape, dtype=torch.long)
    places_M = torch.arange(shape[0])
    micros = split_micro_batches(replace(batch, tokens={**batch.tokens, "place_in_whole": places_M}), max_tokens)
    for micro, chosen_MLK in zip(micros, each(micros, forward), strict=True):
        experts_MLK[micro.tokens["place_in_whole"]] = chosen_MLK
    return replace(batch, tokens={**batch.tokens, "experts": experts_MLK}, replay=replay_routing)
