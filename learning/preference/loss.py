"""The loss of preference pairs: functions that a recipe names, each asking for its columns; the gradient of a step.

The loss of a step is Σ over functions of weight · mean over its pairs, and does not depend on how the pairs are cut
into forward passes. Shapes: P pairs of one forward pass, B pairs of the step, 2 sides (chosen, rejected), M packed
tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learning.lookup import Bound, bind
from learning.models.forwards import evaluation_mode
from learning.models.packed import pack, packed_logprobs
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE, Each
from learning.preference.batches import SIDES, Pair, group_by_tokens, iterate_groups
from schemas.errors import StepError
from schemas.number_schedules import Number, value_at
from schemas.stages.preference import Preference

AT_A_TIME = 256
"""Forward passes whose pairs are in memory together, where there are many."""


@dataclass(frozen=True)
class Term:
    """One loss and its weight."""

    function: Bound
    weight: Number

    @property
    def compares(self) -> bool:
        """Whether it must see all pairs of the step at once."""
        return any(name in self.function.asks for name in ("chosen_B", "rejected_B", "state"))


def bind_losses(stage: Preference, inputs: Mapping[str, Path]) -> list[Term]:
    """Bind the stage's losses; raises StepError for an unknown name or option."""
    return [Term(bind(use, f"loss.{i}", inputs), use.weight) for i, use in enumerate(stage.loss)]


def require_both_sides(terms: Sequence[Term], pairs: Sequence[Pair]) -> None:
    """Raise StepError if rows have one completion with a label and a loss compares two."""
    names = [t.function.name for t in terms if not {"chosen_present_P", "chosen_present_B"} & set(t.function.asks)]
    if names and (single := sum(not pair.chosen or not pair.rejected for pair in pairs)):
        raise StepError(
            f"preference: {single} of {len(pairs)} rows have one completion with a label, and loss {names[0]} compares "
            "two; use `loss: kto` or `bco`, or give pairs"
        )


def collect_asked(terms: Sequence[Term]) -> set[str]:
    """Return what some loss asks for, without shape: `chosen_ref`, `margin`, `kl`."""
    return {name.removesuffix("_P").removesuffix("_B") for term in terms for name in term.function.asks}


def compute_logprobs(model: Any, pairs: Sequence[Pair]) -> Tensor:
    """Return the log-probabilities (P, 2) of chosen and rejected completions; their prompt is computed once.

    Prompt tokens and observations count nothing; the end-of-sequence token that closes a completion does. A side that a
    row lacks has 0.
    """
    roots: dict[tuple[int, ...], int] = {}
    segments, parents, leaves, learned = [], [], [], list[bool]()
    for pair in pairs:
        if (prompt := tuple(pair.prompt)) not in roots:
            roots[prompt] = len(segments)
            segments.append(pair.prompt)
            parents.append(-1)
            learned += [False] * len(prompt)
        for side in SIDES:
            completion: list[int] = getattr(pair, side)
            leaves.append(len(segments) if completion else -1)
            segments += [completion] if completion else []
            parents += [roots[prompt]] if completion else []
            learned += pair.list_learned(side)
    packed = pack(segments, parents).to(model.device)
    owner_M = torch.repeat_interleave(torch.arange(len(segments)), packed.cu_seqlens_S1.diff()).to(model.device)
    lp_M, _ = packed_logprobs(model, packed, needed_M=torch.tensor(learned, device=model.device))
    # The last is that of sides that rows with a label lack.
    sums_S = lp_M.new_zeros(len(segments) + 1).index_add(0, owner_M, lp_M)
    return sums_S[torch.tensor(leaves, device=model.device)].view(-1, 2)


@torch.no_grad()
def compute_fixed_logprobs(model: Any, pairs: Sequence[Pair], max_tokens: int, each: Each = ALONE.each) -> Tensor:
    """Return the same for any number of pairs, without gradient and dropout, on the CPU.

    `each` is how the ranks of a group share the forward passes.
    """
    micros, logprobs = iterate_groups(pairs, max_tokens), []
    with evaluation_mode(model):
        while some := list(islice(micros, AT_A_TIME)):
            logprobs += each(some, lambda micro: compute_logprobs(model, micro).cpu())
    return torch.cat(logprobs) if logprobs else torch.zeros(0, 2)


def add_gradient(
    terms: Sequence[Term], trained: Trained, pairs: list[Pair], columns: Mapping[str, Any], step: int, max_tokens: int
) -> tuple[float, Tensor]:
    """Add the gradient of the step's loss to the model; returns the loss and the log-probabilities (B, 2).

    `columns` are those of the step's pairs, named with `_B`, and `kl` and `states`. Ranks of a group share the forward
    passes.
    """
    model, group = trained.model, trained.group
    sizes = [pair.size for pair in pairs]
    micros = group_by_tokens(pairs, group.fair(max_tokens, sum(sizes), max(sizes)))
    whole_B2, pull_B2, loss = None, None, 0.0
    comparing = [term for term in terms if term.compares]
    once = len(micros) == 1 and group.size == 1
    if comparing:
        # Dropout of the second pass must be that of the first.
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices, not once):
            log_probs = partial(compute_logprobs, model)
            parts = [log_probs(micros[0])] if once else trained.each(micros, lambda micro: log_probs(micro).cpu())
        whole_B2 = torch.cat(parts)
        leaf_B2 = whole_B2.detach().requires_grad_()
        total = compute_loss(comparing, leaf_B2, columns, slice(None), step)
        (pull_B2,) = torch.autograd.grad(total, leaf_B2)
        loss = float(total.detach())
    rest = [term for term in terms if not term.compares]

    def part_loss(item: tuple[list[Pair], slice]) -> tuple[Tensor, tuple[float, Tensor]]:
        micro, part = item
        lp_P2 = whole_B2 if once and whole_B2 is not None else compute_logprobs(model, micro)
        total = compute_loss(rest, lp_P2, columns, part, step) * len(micro) / len(pairs)
        pulled = total if pull_B2 is None else total + (pull_B2.to(lp_P2)[part] * lp_P2).sum()
        return pulled, (float(total.detach()), lp_P2.detach() if group.size == 1 else lp_P2.detach().cpu())

    mine = trained.backward(list(zip(micros, locate_passes(micros), strict=True)), part_loss)
    loss += group.add_up([sum(value for value, _ in mine)])[0]
    return loss, torch.cat(group.together([lp_P2 for _, lp_P2 in mine]))


def locate_passes(micros: Sequence[Sequence[Pair]]) -> Iterator[slice]:
    """Yield where each forward pass lies among the pairs of the step."""
    start = 0
    for micro in micros:
        yield slice(start, start + len(micro))
        start += len(micro)


def compute_loss(terms: Sequence[Term], lp_P2: Tensor, columns: Mapping[str, Any], part: slice, step: int) -> Tensor:
    """Return Σ of weight · mean over the pairs of one part of the step, of which `lp_P2` are the log-probabilities."""
    supplies = dict(columns)
    for name, value in columns.items():
        if name.endswith("_B"):
            supplies[name] = value.to(lp_P2)
            supplies[f"{name.removesuffix('_B')}_P"] = supplies[name][part]
    supplies |= {f"{side}_{shape}": lp_P2[:, i] for i, side in enumerate(SIDES) for shape in "PB"}
    supplies |= {"step": step, "kl": columns["kl"].to(lp_P2)} if "kl" in columns else {"step": step}
    total = lp_P2.new_zeros(())
    for term in terms:
        loss_P = term.function.ask(step, supplies)
        if loss_P.shape != lp_P2.shape[:1]:
            raise StepError(f"loss {term.function.name}: gives {tuple(loss_P.shape)} for {len(lp_P2)} pairs, one each")
        total = total + value_at(term.weight, step) * loss_P.mean()
    return total


def compute_held_out_loss(terms: Sequence[Term], lp_B2: Tensor, columns: Mapping[str, Any], step: int) -> float:
    """Return the loss of held-out pairs; the losses' states are left unchanged."""
    states = {"states": deepcopy(columns["states"])}
    return float(compute_loss(terms, lp_B2, {**columns, **states}, slice(None), step))


def compute_implicit_rewards(terms: Sequence[Term], lp_B2: Tensor, columns: Mapping[str, Any], step: int) -> Tensor:
    """Return implicit rewards (B, 2): β·(log-ratio to the reference), or without one β·(mean log-prob per token).

    β is the first that a loss has, else 1. Without `reference` it is `previous` that log-ratios are against.
    """
    betas = [term.function.options["beta"] for term in terms if "beta" in term.function.options]
    beta = value_at(betas[0], step) if betas else 1.0
    for base in ("ref", "prev"):
        if f"chosen_{base}_B" in columns:
            return beta * (lp_B2.cpu() - torch.stack([columns[f"{side}_{base}_B"] for side in SIDES], 1))
    return beta * lp_B2.cpu() / torch.stack([columns[f"{side}_tokens_B"] for side in SIDES], 1).clamp(min=1)


def mismatch_pairs(pairs: Sequence[Pair], max_length: int) -> list[Pair]:
    """Return KTO's mismatched pairs: each prompt with the completions of the next pair of another prompt that fit.

    Raises StepError when a pair has none.
    """
    mates = [_mate(pairs, i, max_length) for i in range(len(pairs))]
    return [replace(m, id=p.id, prompt=p.prompt) for p, m in zip(pairs, mates, strict=True)]


def _mate(pairs: Sequence[Pair], index: int, max_length: int) -> Pair:
    pair = pairs[index]
    for step in range(1, len(pairs)):
        other = pairs[(index + step) % len(pairs)]
        longest = max(len(other.chosen), len(other.rejected))
        if other.prompt != pair.prompt and len(pair.prompt) + longest <= max_length:
            return other
    raise StepError(
        f"kl: pair {pair.id} finds no other prompt whose completions fit behind its own in {max_length} tokens; "
        "give pairs of more prompts, or raise max_length"
    )
