"""What is known of preference pairs before anything is trained: columns by name, only those that a loss asks for.

Shapes: N pairs of a set, B pairs of a step, 2 sides (chosen, rejected).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learning.data.stored_rows import RowSubset
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE, Each
from learning.preference.batches import SIDES, Pair
from learning.preference.loss import compute_fixed_logprobs, mismatch_pairs
from schemas.errors import StepError


@dataclass
class PairSet:
    """Pairs, their columns (N,), and each prompt with the completions of another where the loss has a baseline."""

    pairs: Sequence[Pair]
    columns: dict[str, Tensor]
    strange: list[Pair] = field(default_factory=list)
    strange_ref_N2: Tensor | None = None

    def select_columns(self, trained: Trained, chosen: Sequence[int], max_tokens: int) -> dict[str, Tensor]:
        """Return the columns of some pairs for losses; `kl` is that of the model as it is now."""
        index_B = torch.tensor(list(chosen), dtype=torch.long)
        columns = {f"{name}_B": column_N[index_B] for name, column_N in self.columns.items()}
        if self.strange_ref_N2 is not None:
            strange = [self.strange[i] for i in chosen]
            now_B2 = compute_fixed_logprobs(trained.model, strange, max_tokens, trained.each).double()
            there_B2 = torch.tensor([[len(pair.chosen) > 0, len(pair.rejected) > 0] for pair in strange])
            columns["kl"] = (now_B2 - self.strange_ref_N2[index_B])[there_B2].mean().clamp(min=0)
        return columns


def make_pair_set(pairs: Sequence[Pair], names: set[str], max_length: int) -> PairSet:
    """Return pairs with the columns that losses ask for.

    Raises StepError when a pair does not say it, and where a baseline finds no other prompt.
    """
    columns = {f"{s}_tokens": torch.tensor([p.count_learned(s) for p in pairs], dtype=torch.float64) for s in SIDES}
    columns |= {f"{s}_present": (columns[f"{s}_tokens"] > 0).double() for s in SIDES}
    if "margin" in names:
        columns["margin"] = _make_column([pair.margin for pair in pairs], "margin")
    for name in (f"{side}_score" for side in SIDES):
        if name in names:
            columns[name] = _make_column([json.loads(pair.metadata or "{}").get(name) for pair in pairs], name)
    return PairSet(pairs, columns, mismatch_pairs(pairs, max_length) if "kl" in names else [])


def _make_column(values: list[float | None], name: str) -> Tensor:
    if without := sum(value is None for value in values):
        raise StepError(
            f"preference: a loss asks for {name}, but {without} of {len(values)} pairs have none; a synthesize stage "
            "that makes pairs notes it with each"
        )
    return torch.tensor(values, dtype=torch.float64)


def add_reference(
    made: PairSet,
    base: str,
    model: Any,
    used: Sequence[int],
    names: set[str],
    max_tokens: int,
    each: Each = ALONE.each,
) -> None:
    """Add log-probabilities under a policy, `ref` or `prev`, of the pairs that are used; not a number elsewhere.

    `each` is how the ranks of a group share the forward passes.
    """

    def spread(pairs: Sequence[Pair]) -> Tensor:
        found_N2 = torch.full((len(pairs), 2), torch.nan, dtype=torch.float64)
        found_N2[list(used)] = compute_fixed_logprobs(model, RowSubset(pairs, used), max_tokens, each).double()
        return found_N2

    lp_N2 = spread(made.pairs)
    made.columns |= {f"{side}_{base}": lp_N2[:, i] for i, side in enumerate(SIDES)}
    if base == "ref" and "kl" in names:
        made.strange_ref_N2 = spread(made.strange)


def list_bases(names: set[str]) -> list[str]:
    """Return which of the policies `ref` and `prev` are asked for; a baseline is against `ref`."""
    return [
        base
        for base in ("ref", "prev")
        if names & {f"{side}_{base}" for side in SIDES} or (base == "ref" and "kl" in names)
    ]
