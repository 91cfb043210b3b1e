"""One padding-free forward over a forest of segments: a shared prefix is stored, and computed, once.

A log-probability is that of token t given its path, stored AT t: the first token of a child is predicted by the last
token of its parent, the first token of a root by nothing (0).

Shapes: M packed tokens, S segments, S1 = S + 1 borders, B needed tokens, C width of the model, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learning.models.segments import NAME, Layout, chain_lengths, make_layout
from schemas.errors import StepError

WORTH_LEAVING_OUT = 0.9
"""Share of the tokens above which the last layer does all of them: picking some costs a little too."""
LOGITS_PER_CHUNK = 1 << 24
"""Largest number of logits alive at once; more are computed chunk by chunk, and again in the backward pass."""


@dataclass(frozen=True)
class Packed:
    """A forest of segments in one row: parents come before their children."""

    input_ids_M: Tensor
    position_ids_M: Tensor
    cu_seqlens_S1: Tensor
    parent_S: Tensor

    @cached_property
    def layout(self) -> Layout:
        """How attention cuts the forest."""
        device = self.input_ids_M.device
        borders, parents = self.cu_seqlens_S1.tolist(), self.parent_S.tolist()
        return make_layout(borders, parents, by_row=device.type == "cpu").to(device)

    @cached_property
    def source_M(self) -> Tensor:
        """Packed index of the token that predicts each token; −1 for the first of a root."""
        starts, parents = self.cu_seqlens_S1.tolist(), self.parent_S.tolist()
        source_M = torch.arange(-1, starts[-1] - 1)
        for segment, parent in enumerate(parents):
            while parent >= 0 and starts[parent] == starts[parent + 1]:
                parent = parents[parent]
            if starts[segment] < starts[segment + 1]:
                source_M[starts[segment]] = starts[parent + 1] - 1 if parent >= 0 else -1
        return source_M.to(self.input_ids_M.device)

    def to(self, device: torch.device | str) -> "Packed":
        """The same on another device."""
        return replace(self, input_ids_M=self.input_ids_M.to(device), position_ids_M=self.position_ids_M.to(device))


def pack(segments: list[list[int]], parents: list[int]) -> Packed:
    """Lay segments of token ids end to end; `parents[i]` < i is the index of a segment's parent, −1 for a root.

    Raises ValueError when a parent does not come before its child.
    """
    if len(segments) != len(parents) or any(not -1 <= parent < child for child, parent in enumerate(parents)):
        raise ValueError("every segment needs a parent that comes before it, or -1")
    lengths = [len(s) for s in segments]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    before = chain_lengths(lengths, parents)
    positions = [torch.arange(b, b + n) for b, n in zip(before, lengths, strict=True)]
    return Packed(
        torch.tensor([token for s in segments for token in s], dtype=torch.long),
        torch.cat(positions) if positions else torch.zeros(0, dtype=torch.long),
        starts,
        torch.tensor(parents, dtype=torch.long),
    )


@contextmanager
def _segment_attention(model: Any) -> Iterator[None]:
    """Switch the model to attention over segments, and back."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


@contextmanager
def _last_block_at(model: Any, rows_B: Tensor | None, size: int) -> Iterator[None]:
    """Let the last layer's feed-forward block work on some of `size` tokens only; nobody reads the others.

    A mixture of experts is left alone: its router counts tokens.
    """
    layers = getattr(model.base_model, "layers", None)
    block = getattr(layers[-1], "mlp", None) if layers else None
    if rows_B is None or block is None or hasattr(block, "experts") or len(rows_B) > WORTH_LEAVING_OUT * size:
        yield
        return
    before = block.register_forward_pre_hook(lambda _, given: (given[0].index_select(1, rows_B),))
    after = block.register_forward_hook(
        lambda _, given, out_1BC: out_1BC.new_zeros(1, size, out_1BC.shape[2]).index_copy(1, rows_B, out_1BC)
    )
    try:
        yield
    finally:
        before.remove()
        after.remove()


def packed_hidden(model: Any, packed: Packed, rows_B: Tensor | None = None) -> Tensor:
    """Last hidden state of every token (M, C), each seeing only its own path; with `rows_B`, of these tokens at least.

    `model` is a causal language model of transformers (or peft's wrapping of one) that supports AttentionInterface.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    with _segment_attention(model), _last_block_at(model, rows_B, len(packed.input_ids_M)):
        out = model.base_model(
            input_ids=packed.input_ids_M[None],
            position_ids=packed.position_ids_M[None],
            use_cache=False,
            layout=packed.layout,
        )
    return out.last_hidden_state.squeeze(0)


def packed_logprobs(
    model: Any,
    packed: Packed,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    needed_M: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of every token given its path, and with `entropy` that of its distribution: (M,) each."""
    followed = ("lp", "entropy") if entropy else ("lp",)
    found = packed_statistics(model, packed, followed=followed, temperature=temperature, needed_M=needed_M)
    return found["lp"], found.get("entropy")


def packed_statistics(
    model: Any,
    packed: Packed,
    *,
    followed: tuple[str, ...] = ("lp",),
    watched: tuple[str, ...] = (),
    temperature: float = 1.0,
    needed_M: Tensor | None = None,
) -> dict[str, Tensor]:
    """Statistics of every token given its path, of the distribution softmax(logits / temperature): (M,) each.

    `lp` the token's log-probability, `entropy` in nats, `lp_mean` the mean log-probability over the vocabulary,
    `collision` the chance that two draws are equal, Σ p². Gradients flow through the `followed` ones only. Tokens
    outside the boolean `needed_M` cost no logits and are 0. Raises StepError where a model changes its logits.
    """
    head = _head(model)
    wanted_M = packed.source_M >= 0
    at_B = (wanted_M if needed_M is None else wanted_M & needed_M.to(wanted_M.device)).nonzero()[:, 0]
    sources_B = packed.source_M[at_B]
    rows_BC = packed_hidden(model, packed, sources_B.unique()).index_select(0, sources_B)
    ids_B = packed.input_ids_M[at_B]
    step = max(1, LOGITS_PER_CHUNK // head.weight.shape[0])
    pieces = []
    for rows, ids in zip(rows_BC.split(step), ids_B.split(step), strict=True):
        inputs = (rows, ids, head, temperature, followed, watched)
        again = len(rows_BC) > step and torch.is_grad_enabled()
        pieces.append(
            checkpoint(_score, *inputs, use_reentrant=False, preserve_rng_state=False) if again else _score(*inputs)
        )
    columns = [torch.cat(column) for column in zip(*pieces, strict=True)]
    zeros_M = columns[0].new_zeros(len(packed.input_ids_M))
    names = zip((*followed, *watched), columns, strict=True)
    return {name: zeros_M.index_put((at_B,), column_B) for name, column_B in names}


def _score(
    rows_BC: Tensor,
    ids_B: Tensor,
    head: torch.nn.Module,
    temperature: float,
    followed: tuple[str, ...],
    watched: tuple[str, ...],
) -> tuple[Tensor, ...]:
    """Statistics (B,) of the distributions after each row, in float32 at least."""
    logits_BV = head(rows_BC)
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)) / temperature
    logp_BV = logits_BV.log_softmax(-1)
    fixed_BV = logp_BV.detach()
    return tuple(
        STATISTICS[name](of_BV, ids_B) for names, of_BV in ((followed, logp_BV), (watched, fixed_BV)) for name in names
    )


STATISTICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "lp": lambda logp_BV, ids_B: logp_BV.gather(1, ids_B[:, None])[:, 0],
    "entropy": lambda logp_BV, ids_B: -(logp_BV.exp() * logp_BV).sum(-1),
    "lp_mean": lambda logp_BV, ids_B: logp_BV.mean(-1),
    "collision": lambda logp_BV, ids_B: (2 * logp_BV).exp().sum(-1),
}


def _head(model: Any) -> torch.nn.Module:
    """The layer from hidden states to logits."""
    for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, key, None) is not None:
            raise StepError(f"packed forward: {model.config.model_type} changes its logits ({key}), not supported")
    return model.get_output_embeddings()
