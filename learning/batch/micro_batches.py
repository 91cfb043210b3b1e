"""Mini-batches and micro-batches of a batch, and statistics of its sampled tokens from passes over micro-batches.

Shapes: T sampled tokens, M packed tokens.
"""

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from learning.batch.batch import Batch
from learning.models.shared_prefixes import shared_statistics
from learning.parallel.group import ALONE, Each, Group


def split_mini_batches(batch: Batch, count: int) -> list[Batch]:
    """Return at most `count` parts with whole groups, in the order in which groups appear."""
    groups = list(_paths_by_group(batch).values())
    borders = [len(groups) * i // count for i in range(count + 1)]
    parts = [groups[a:b] for a, b in pairwise(borders)]
    return [batch.take([p for group in part for p in group]) for part in parts if part]


def split_micro_batches(batch: Batch, max_tokens: int) -> list[Batch]:
    """Return parts of at most `max_tokens` tokens, a shared prompt counted once; a longer path is alone.

    Groups stay whole where they fit, so that their prompt is computed once.
    """
    parts: list[list[int]] = [[]]
    included: set[int] = set()
    size = 0
    for group in _paths_by_group(batch).values():
        all_tokens = _new_tokens(batch, group, set())
        units = [group] if all_tokens <= max_tokens else [[p] for p in group]
        for unit in units:
            more = _new_tokens(batch, unit, included)
            if parts[-1] and size + more > max_tokens:
                parts.append([])
                included, size = set(), 0
                more = _new_tokens(batch, unit, included)
            parts[-1] += unit
            included |= batch.find_segments(unit)
            size += more
    return [batch.take(part) for part in parts if part]


def split_shared_micro_batches(batch: Batch, max_tokens: int, group: Group) -> list[Batch]:
    """Return micro-batches that leave no rank of a group idle."""
    if group.size == 1 or not batch.num_paths:
        return split_micro_batches(batch, max_tokens)
    longest = int(batch.packed.position_ids_M.max()) + 1
    return split_micro_batches(batch, group.fair(max_tokens, len(batch.packed.input_ids_M), longest))


def _paths_by_group(batch: Batch) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for path, group in enumerate(batch.paths["group"].tolist()):
        groups.setdefault(group, []).append(path)
    return groups


def _new_tokens(batch: Batch, paths: list[int], included: set[int]) -> int:
    return sum(len(batch.segments[s]) for s in batch.find_segments(paths) - included)


@torch.no_grad()
def compute_token_statistics(
    model: Any, micro: Batch, names: tuple[str, ...], *, temperature: float, replay: bool = False
) -> dict[str, Tensor]:
    """Return statistics (T,) in float64 of the sampled tokens of one micro-batch: one forward pass."""
    with micro.routed(model) if replay else nullcontext():
        columns = shared_statistics(
            model,
            micro.packed.to(model.device),
            followed=names,
            temperature=temperature,
            needed_M=micro.tokens["learn"],
            kept_M=micro.kept_M,
        )
    return {name: column_M.cpu()[micro.sampled_T].double() for name, column_M in columns.items()}


@torch.no_grad()
def statistics_of(
    batch: Batch,
    model: Any,
    names: tuple[str, ...],
    *,
    max_tokens: int,
    temperature: float,
    replay: bool = False,
    each: Each = ALONE.each,
) -> dict[str, Tensor]:
    """Return statistics (T,) in float64 of a batch's sampled tokens under a model, without a gradient.

    With `replay` a mixture of experts uses the experts that the batch has recorded, if any. `each` shares the forward
    passes among the ranks of a group.
    """

    def forward(micro: Batch) -> dict[str, Tensor]:
        return compute_token_statistics(model, micro, names, temperature=temperature, replay=replay)

    statistics = {name: torch.zeros(len(batch.tokens["learn"]), dtype=torch.float64) for name in names}
    micros = split_micro_batches(batch.with_tokens(place_in_whole=batch.sampled_T), max_tokens)
    for micro, columns in zip(micros, each(micros, forward), strict=True):
        for name, column_T in columns.items():
            statistics[name][micro.sampled("place_in_whole")] = column_T
    return {name: column_M[batch.sampled_T] for name, column_M in statistics.items()}
