"""A script in place of a language model that writes reward functions: it edits the best one, or draws one."""

import json
import re

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate

FUNCTION = re.compile(r"```python\n(def reward\(.*?)```", re.DOTALL)
TERM = re.compile(r"([+-]) (\d+\.\d+)(?: \* abs\((\w+)\))?")


def reward_author(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Return a linear function of the sizes of what is seen: drawn, or the best one shown with one number changed.

    With chance `error_rate` it divides by 0, as code of a model may fail.
    """
    names = json.loads(row["metadata"])["names"]
    shown = FUNCTION.findall(row["prompt"][-1]["content"])
    terms = read_terms(shown[1], names) if len(shown) > 1 else None  # the first is the form
    if terms is None:
        terms = {name: float(rng.normal()) for name in ("", *names)}
    else:
        changed = ("", *names)[int(rng.integers(len(names) + 1))]
        terms[changed] += float(rng.normal())
    parts = [
        f"{'-' if value < 0 else '+'} {abs(value):.3f}" + (f" * abs({name})" if name else "")
        for name, value in terms.items()
    ]
    broken = " / 0.0" if rng.random() < error_rate else ""
    return f"```python\ndef reward({', '.join(names)}):\n    return 0.0 {' '.join(parts)}{broken}\n```"


def read_terms(text: str, names: list[str]) -> dict[str, float] | None:
    """Return the numbers of a function of this script by name, the constant's first; None for another function."""
    found = {name: (-1.0 if sign == "-" else 1.0) * float(size) for sign, size, name in TERM.findall(text)}
    return found if list(found) == ["", *names] else None
