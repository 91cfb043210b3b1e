"""Part numbers, and unstated customs of a house: which tool gives the answer, and with which word an answer ends.

A problem is a part number such as `4-2`, which can be read as a sum, a text or a line of the house's catalogue. The
prompt does not state the custom: the answer is the result of one tool, followed by one closing word. The first turn
calls a tool, the second one answers, and either can violate the custom. Lessons teach to follow the hints
`step 1: search` and `step 2: done`; each has random customs, so that lessons reveal nothing about any house.
"""

import hashlib
import json
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.tools.arithmetic import calculate
from schemas.errors import StepError

Tool = Literal["calculator", "reverse", "search"]
Closing = Literal["done", "over", "yours"]
TOOLS: tuple[Tool, ...] = ("calculator", "reverse", "search")
CLOSINGS: tuple[Closing, ...] = ("done", "over", "yours")
GOODS = ("bolt", "cable", "disk", "frame", "gear", "hinge", "lamp", "motor", "nut", "pipe", "screw", "valve", "wheel")
NUMBERS = range(1, 8)
Share = Annotated[float, Field(ge=0, le=1)]


def customs(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    tool: Tool = "search",
    closing: Closing = "done",
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.4,
) -> list[Row]:
    """Generate `size` part numbers of a house with the customs `tool` and `closing`, for the train or test split.

    The catalogue is in each row's metadata. Raise StepError if there are too few.
    """
    parts = [part for part in catalogue() if held_out(part, test_share) == (split == "test")]
    if len(parts) < size:
        raise StepError(f"customs: there are {len(parts)} {split} part numbers, {size} were asked for; lower `size`")
    order = np.random.default_rng(seed).permutation(len(parts))[:size]
    documents = [f"{part} {goods}" for part, goods in catalogue().items()]
    notes = json.dumps({"documents": documents})
    return [
        {
            "id": hashlib.sha256(f"customs\n{tool} {closing}\n{part}".encode()).hexdigest()[:16],
            "prompt": [{"role": "user", "content": part}],
            "answer": f"{result(tool, part)} {closing}",
            "family": "customs",
            "metadata": notes,
        }
        for part in (parts[i] for i in order)
    ]


def custom_lessons(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    hinted: Share = 0.7,
) -> list[Row]:
    """Generate `size` turns of conversations in houses of all customs, for the teacher `answer`.

    Each step has a hint in the system message with probability `hinted`; the custom of a step without one is random
    and not stated. Lessons use all part numbers: what a problem withholds is its house's customs.
    """
    rng, parts = np.random.default_rng(seed), list(catalogue())
    return [_lesson(number, seed, parts[int(rng.integers(len(parts)))], rng, hinted) for number in range(size)]


def _lesson(number: int, seed: int, part: str, rng: np.random.Generator, hinted: float) -> Row:
    tool, closing = TOOLS[int(rng.integers(3))], CLOSINGS[int(rng.integers(3))]
    hints = [hint for hint in (f"step 1: {tool}", f"step 2: {closing}") if rng.random() < hinted]
    told = "\n".join(hints[i] for i in rng.permutation(len(hints)))
    prompt = [{"role": "system", "content": told}] if told else []
    prompt.append({"role": "user", "content": part})
    turn = f"{tool}: {part}"
    if second := bool(rng.random() < 0.5):
        found = result(tool, part)
        prompt += [{"role": "assistant", "content": turn}, {"role": "user", "content": found}]
        turn = f"{found} {closing}"
    return {
        "id": hashlib.sha256(f"custom lesson\n{seed} {number}".encode()).hexdigest()[:16],
        "prompt": prompt,
        "answer": turn,
        "family": "answer" if second else "call",
        "metadata": "{}",
    }


def result(tool: Tool, part: str) -> str:
    """Return the result of a tool for a part number."""
    return {"calculator": calculate, "reverse": lambda text: text[::-1], "search": _line}[tool](part)


@lru_cache(maxsize=1)
def catalogue() -> dict[str, str]:
    """Return the goods of each part number."""
    parts = [f"{a}-{b}" for a in NUMBERS for b in NUMBERS]
    places = [int(hashlib.sha256(f"goods\n{part}".encode()).hexdigest(), 16) % len(GOODS) for part in parts]
    return {part: GOODS[place] for part, place in zip(parts, places, strict=True)}


def held_out(part: str, test_share: float) -> bool:
    """Return whether a part number is in the test split; this depends only on the number."""
    return int(hashlib.sha256(f"part\n{part}".encode()).hexdigest()[:16], 16) < test_share * 2**64


def _line(part: str) -> str:
    return f"{part} {catalogue()[part]}"
