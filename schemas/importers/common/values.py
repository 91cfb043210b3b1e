"""Values of other tools as numbers and switches; ValueError says what is wrong."""

import math
from typing import Any

from schemas.base import JsonObject

WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "auto": True}


def number(value: Any) -> float:
    """Return a finite number, also from a text such as `1e-4`."""
    if isinstance(value, bool):
        raise ValueError(f"{value} is no number")
    try:
        made = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is no number") from None
    if not math.isfinite(made):
        raise ValueError(f"{value!r} is no finite number")
    return made


def whole(value: Any) -> int:
    """Return a whole number."""
    made = number(value)
    if made != int(made):
        raise ValueError(f"{value!r} is no whole number")
    return int(made)


def flag(value: Any) -> bool:
    """Return a switch, also from YAML 1.1's words `yes`, `no`, `on`, `off`."""
    made = WORDS.get(str(value).lower())
    if made is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return made


def share(value: Any) -> float:
    """Return a number from 0 to below 1."""
    made = number(value)
    if not 0 <= made < 1:
        raise ValueError(f"{value!r} is no share of 1")
    return made


def mapping(value: Any) -> JsonObject:
    """Return a map, empty for anything else."""
    return value if isinstance(value, dict) else {}


def words(value: Any) -> list[str]:
    """Return a list of words, also from a text with commas."""
    items = value if isinstance(value, list) else str(value).split(",")
    return [str(item).strip() for item in items if str(item).strip()]
