"""Writes, for each family of reasoning-gym, a row, answers to it, and what the library's own verifier says of them.

`python gym_rows.py <file> [family ...]`, with the seed of hashes that the verifier server has, because some problems
depend on it. The answers are harmless.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from learning.problems.generators import draw_entries, make_row
from learning.reasoning_gym.families import dataset, families


@cache
def made(*names: str) -> dict[str, dict[str, Any]]:
    """What this file writes, from a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, __file__, file.name, *names], env=environment, check=True, capture_output=True)
        return json.loads(Path(file.name).read_text())


def direct(source: Any, entry: Any, text: str) -> float | None:
    """What the verifier says; None where it raises."""
    try:
        return float(source.score_answer(text, copy.deepcopy(entry)))
    except Exception:
        return None


def answers(right: str, other: str) -> list[str]:
    """The right answer, wrong ones in the right form, and right ones in others."""
    words = right.split()
    as_list = "[" + ", ".join(repr(int(w) if w.isdigit() else w) for w in words) + "]"
    as_rows = "[" + ", ".join(str([int(w) if w.isdigit() else w for w in l.split()]) for l in right.splitlines()) + "]"  # noqa: E741
    return [
        right,
        other,
        right.lower(),
        f"({right})",
        f"The answer is {right}.",
        right[::-1],
        right[: len(right) // 2],
        f"{right} + 1",
        as_list,
        as_rows,
        str(list(right)),
        "7",
        "x**2/2 + sin(x) + C",
        "I think so",
        '{"a": 1}',
        "No",
    ]


def main(file: str, names: list[str]) -> None:
    results = {}
    for family in names or [name for name in families() if name != "composite"]:
        (first, origin), (second, _) = (pair for pair, _ in zip(draw_entries(family, 3, {}), range(2), strict=False))
        source = dataset(family, "{}", origin["seed"])
        right, other = (str(e["answer"] or e["metadata"].get("example_answer", "")) for e in (first, second))
        asked = answers(right.strip(), other.strip())
        scores = [direct(source, first, text.strip()) for text in asked]
        row = make_row(family, first, origin, "full")
        results[family] = {"row": row, "right": right.strip(), "answers": asked, "scores": scores}
    Path(file).write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
