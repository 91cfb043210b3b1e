"""Part numbers, and unstated customs of a house: which tool gives the answer, and with which word an answer ends.

A problem is a part number such as `4-2`, which can be read as a sum, a text or a line of the house's catalogue. The
prompt does not state the custom: the answer is the result of one tool, followed by one closing word. The first turn
calls a tool, the second one answers, and either can violate the custom. Lessons teach to follow the hints
`step 1: search` and `step 2: done`; each has random customs, so that lessons reveal nothing about any house.
"""

import hashlib
from functools import lru_cache
from typing import Literal

import numpy as np

from learning.data.rows import Row
from learning.tools.arithmetic import calculate
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, choose, hash_text, is_in_split, make_row

Tool = Literal["calculator", "reverse", "search"]
Closing = Literal["done", "over", "yours"]
TOOLS: tuple[Tool, ...] = ("calculator", "reverse", "search")
CLOSINGS: tuple[Closing, ...] = ("done", "over", "yours")
GOODS = ("bolt", "cable", "disk", "frame", "gear", "hinge", "lamp", "motor", "nut", "pipe", "screw", "valve", "wheel")
NUMBERS = range(1, 8)


def customs(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    tool: Tool = "search",
    closing: Closing = "done",
    test_share: TestShare = 0.4,
) -> list[Row]:
    """Generate `size` part numbers of a house with the customs `tool` and `closing`, for the train or test split.

    The catalogue is in each row's metadata. Raise StepError if there are too few.
    """
    parts = [part for part in make_catalogue() if is_in_split(hash_text(f"part\n{part}"), split, test_share)]
    about = {"documents": [f"{part} {goods}" for part, goods in make_catalogue().items()]}
    return [
        make_row("customs", part, f"{call_tool(tool, part)} {closing}", about, salt=f"customs\n{tool} {closing}")
        for part in choose("customs", split, parts, size, seed)
    ]


def custom_lessons(
    *,
    size: Size,
    seed: int = 0,
    hinted: Rate = 0.7,
) -> list[Row]:
    """Generate `size` turns of conversations in houses of all customs, for the teacher `answer`.

    Each step has a hint in the system message with probability `hinted`; the custom of a step without one is random
    and not stated. Lessons use all part numbers: what a problem withholds is its house's customs.
    """
    rng, parts = np.random.default_rng(seed), list(make_catalogue())
    return [_lesson(number, seed, parts[int(rng.integers(len(parts)))], rng, hinted) for number in range(size)]


def _lesson(number: int, seed: int, part: str, rng: np.random.Generator, hinted: float) -> Row:
    tool, closing = TOOLS[int(rng.integers(3))], CLOSINGS[int(rng.integers(3))]
    hints = [hint for hint in (f"step 1: {tool}", f"step 2: {closing}") if rng.random() < hinted]
    system = "\n".join(hints[i] for i in rng.permutation(len(hints)))
    prompt = [{"role": "system", "content": system}] if system else []
    prompt.append({"role": "user", "content": part})
    turn = f"{tool}: {part}"
    if second := bool(rng.random() < 0.5):
        answer = call_tool(tool, part)
        prompt += [{"role": "assistant", "content": turn}, {"role": "user", "content": answer}]
        turn = f"{answer} {closing}"
    return {
        "id": hash_text(f"custom lesson\n{seed} {number}"),
        "prompt": prompt,
        "answer": turn,
        "family": "answer" if second else "call",
        "metadata": "{}",
    }


def call_tool(tool: Tool, part: str) -> str:
    """Return the result of a tool for a part number."""
    return {"calculator": calculate, "reverse": lambda text: text[::-1], "search": _line}[tool](part)


@lru_cache(maxsize=1)
def make_catalogue() -> dict[str, str]:
    """Return the goods of each part number."""
    parts = [f"{a}-{b}" for a in NUMBERS for b in NUMBERS]
    places = [int(hashlib.sha256(f"goods\n{part}".encode()).hexdigest(), 16) % len(GOODS) for part in parts]
    return {part: GOODS[place] for part, place in zip(parts, places, strict=True)}


def _line(part: str) -> str:
    return f"{part} {make_catalogue()[part]}"
