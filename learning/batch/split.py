"""Splits of a batch: into mini-batches at group borders (one optimiser step each), into micro-batches by tokens."""

from itertools import pairwise

from learning.batch.batch import Batch
from learning.parallel.group import Group


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
            included |= _segments(batch, unit)
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


def _segments(batch: Batch, paths: list[int]) -> set[int]:
    segments: set[int] = set()
    for segment in (batch.leaves[p] for p in paths):
        while segment >= 0 and segment not in segments:
            segments.add(segment)
            segment = batch.parents[segment]
    return segments


def _new_tokens(batch: Batch, paths: list[int], included: set[int]) -> int:
    return sum(len(batch.segments[s]) for s in _segments(batch, paths) - included)
