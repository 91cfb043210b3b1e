"""How many rows of each source a mixture has, and which: weights, a temperature, limits and repetitions."""

from collections.abc import Sequence

import numpy as np

from learning.data.sources.shares import choose_index_type, divide
from schemas.errors import StepError
from schemas.stages.data import Data, Source


def count_usable(stage: Data, kept: Sequence[int]) -> list[int]:
    """Return the rows that each source can give with `max_rows` and `repeat`. Raise StepError if one has none."""
    there = [
        min(rows, source.max_rows or rows) * source.repeat for source, rows in zip(stage.sources, kept, strict=True)
    ]
    if empty := [i for i, rows in enumerate(there) if not rows]:
        raise StepError(f"data: source {empty[0] + 1} has no rows that fit")
    return there


def count_chosen(stage: Data, kept: Sequence[int]) -> list[int]:
    """Return the rows of each source in the mixture, given the rows that fit; repeated rows count each time.

    With weights or a temperature the shares are exact to one row, and without `max_rows` the total is the largest at
    which no source has to be repeated beyond `repeat`. Raise StepError if a source has no rows.
    """
    there = count_usable(stage, kept)
    if stage.sources[0].weight is not None:
        shares = np.array([source.weight for source in stage.sources], float)
    elif stage.temperature is not None:
        shares = np.array(there, float) ** (1 / stage.temperature)
    else:
        total = sum(there)
        return there if stage.max_rows is None else divide(np.array(there, float), min(total, stage.max_rows))
    shares /= shares.sum()
    # A hair more, so that shares that divide the rows exactly do not lose one to rounding.
    total = stage.max_rows or int(min(rows / share for rows, share in zip(there, shares, strict=True)) * (1 + 1e-12))
    return divide(shares, total)


def choose_rows(source: Source, kept: int, count: int, seed: Sequence[int]) -> np.ndarray:
    """Return how often each of the rows that fit is in the mixture; `count` in all, drawn with the seed.

    Rows are drawn evenly: of two that `max_rows` allows, one is there at most once more than the other.
    """
    return np.bincount(draw_rows(source, kept, count, seed), minlength=kept)


def draw_rows(source: Source, kept: int, count: int, seed: Sequence[int]) -> np.ndarray:
    """Return `count` of the rows that fit, in random order; a row comes again only after all others that may come."""
    numbers = np.arange(kept, dtype=choose_index_type(kept))  # all types are shuffled into the same order
    order = np.random.default_rng(list(seed)).permutation(numbers)[: min(kept, source.max_rows or kept)]
    return order[:count] if count <= len(order) else np.tile(order, -(-count // len(order)))[:count]


def name_sources(stage: Data, stems: Sequence[str | None]) -> list[str]:
    """Return the name of each source: its own, that of its only file, or `source1` and so on; all differ."""
    names = [source.name or stem or "" for source, stem in zip(stage.sources, stems, strict=True)]
    return [name if name and names.count(name) == 1 else f"source{i}" for i, name in enumerate(names, 1)]
