"""JSON as trees of nodes: what a text of JSON says, with a number for the place of every value.

A place is the last two steps of the way to a value: keys, with one mark for all positions in an array.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn
from zlib import crc32

import numpy as np

from schemas.errors import StepError

DEEPEST = 32
"""Most containers around a value."""
ROOT, ITEM = "\0root", "\0item"


@dataclass(frozen=True)
class Node:
    """A number, a text, or an object or array with children; `level` is 0 for the first two."""

    place: int
    """CRC-32 of the place."""
    level: int
    value: float | bytes | None = None
    children: tuple["Node", ...] = ()
    is_ordered: bool = False
    """Whether it is an array."""


@lru_cache(maxsize=20_000)
def read_tree(text: bytes) -> Node | None:
    """Return the tree of a text of JSON; None where it has no value but nulls.

    Keys are sorted, so that equal objects make equal trees. Raise StepError for a text that is no JSON, has a number
    that is not finite, or more than 32 containers around a value.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
        return _grow(value, (ROOT,))
    except (ValueError, OverflowError, RecursionError) as error:
        raise StepError(f"no JSON that can be read: {error}; it begins {text[:80]!r}") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no finite number")


def _grow(value: Any, way: tuple[str, ...]) -> Node | None:
    if len(way) > DEEPEST + 1:
        raise ValueError(f"more than {DEEPEST} containers around a value")
    place = crc32(json.dumps(way[-2:]).encode())
    if isinstance(value, Mapping):
        grown = [_grow(value[key], (*way, f"key {key}")) for key in sorted(value)]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        grown = [_grow(one, (*way, ITEM)) for one in value]
    elif isinstance(value, str):
        return Node(place, 0, value.encode(errors="replace"))
    elif value is None:
        return None
    else:
        number = float(value)
        if not np.isfinite(number):
            raise ValueError(f"{value} is no finite number")
        return Node(place, 0, number)
    children = tuple(child for child in grown if child is not None)
    if not children:
        return None
    level = 1 + max(child.level for child in children)
    return Node(place, level, children=children, is_ordered=not isinstance(value, Mapping))


def write_bytes(value: Any, size: int) -> np.ndarray:
    """Return a JSON value as `size` bytes in UTF-8, zeros behind its end. Raise StepError if it is longer."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    if len(text) > size:
        raise StepError(f"env as_json: an observation has {len(text)} bytes of JSON, and `size` is {size}: raise it")
    return np.frombuffer(text.ljust(size, b"\0"), np.uint8).copy()


def describe(space: Any, observation: Any) -> Any:
    """Return an observation of a space of Gymnasium as a JSON value. Raise StepError for a space that has none."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {str(key): describe(part, observation[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [describe(part, one) for part, one in zip(space.spaces, observation, strict=True)]
    if isinstance(space, spaces.Sequence):
        return [describe(space.feature_space, one) for one in observation]
    if isinstance(space, spaces.Text):
        return str(observation)
    if isinstance(space, spaces.Discrete):
        return int(observation)
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        numbers = np.asarray(observation)
        return _list_numbers(numbers.reshape(()) if numbers.size == 1 else numbers)
    raise StepError(f"env as_json: observations of {space} are no JSON; wrap the environment")


def _list_numbers(numbers: np.ndarray) -> Any:
    """Return numbers in nested lists, those of float32 by their shortest decimals."""
    if numbers.ndim:
        return [_list_numbers(one) for one in numbers]
    return int(numbers) if numbers.dtype.kind in "iub" else float(str(numbers[()]))
