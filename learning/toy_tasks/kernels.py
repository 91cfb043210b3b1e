"""Kernels of a tiny language: chains of array operations, their runs against a reference, and a profiler of passes.

A program is a list of kernels: `tile mul add / relu` has two, the first of which fuses two operations. Every kernel
reads its input from memory and writes its output: two passes. `sum` adds up rows; behind another operation of its
kernel it needs two more passes, unless the kernel begins with `tile`. `stored` writes the output that was stored for
the known input, and `reference` calls the program that is to be replaced: neither is a program of one's own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.samples.conversation import RoleTurn
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row, read_metadata

SIDE = 8
CONSTANTS = {"mul": 3.0, "add": 1.5, "sub": 0.5, "div": 2.0}
OPERATIONS = (*CONSTANTS, "relu", "neg", "sum")
STORED, REFERENCE, TILE = "stored", "reference", "tile"
LONGEST = 400
"""Most characters of a program that are read."""
MAX_DRAWS = 60
"""Tasks drawn per row after which there are too few."""


@dataclass(frozen=True)
class Profile:
    """What running a program shows."""

    output: np.ndarray
    passes: int


def read_program(text: str) -> list[list[str]] | None:
    """Return the kernels of a program, each a list of words; None if it has another word or an empty kernel."""
    kernels = [part.split() for part in text[:LONGEST].split("/")] if len(text) <= LONGEST else []
    known = {*OPERATIONS, STORED, REFERENCE}
    valid = all(words[words[:1] == [TILE] :] and known.issuperset(words[words[:1] == [TILE] :]) for words in kernels)
    return kernels if kernels and valid else None


def run_program(kernels: Sequence[Sequence[str]], chain: Sequence[str], known: int, seed: int) -> Profile:
    """Return output and passes of a program on the input of a seed; `known` is the seed of which output is stored."""
    value, passes = make_input(seed), 0
    for kernel in kernels:
        tiled = kernel[0] == TILE
        passes += 2
        for place, word in enumerate(kernel[tiled:]):
            if word == STORED:
                value, passes = compute_chain(chain, make_input(known)), passes - 1
            elif word == REFERENCE:
                value, passes = compute_chain(chain, make_input(seed)), passes - 2 + 2 * len(chain)
            else:
                value = compute_chain([word], value)
                passes += 2 if word == "sum" and place and not tiled else 0
    return Profile(value, passes)


def make_input(seed: int) -> np.ndarray:
    """Return a matrix."""
    return np.random.default_rng(seed).normal(size=(SIDE, SIDE))


def compute_chain(chain: Sequence[str], value: np.ndarray) -> np.ndarray:
    """Return what a chain of operations makes of a matrix, operation by operation: the reference."""
    for word in chain:
        if word == "sum":
            value = value.sum(axis=-1, keepdims=True)
        elif word in ("relu", "neg"):
            value = np.maximum(value, 0.0) if word == "relu" else -value
        else:
            other = CONSTANTS[word]
            value = {"mul": value * other, "add": value + other, "sub": value - other, "div": value / other}[word]
    return value


def is_right(output: np.ndarray, chain: Sequence[str], seed: int) -> bool:
    """Return whether an output is that of the reference."""
    wanted = compute_chain(chain, make_input(seed))
    return output.shape == wanted.shape and bool(np.allclose(output, wanted))


def write_program(chain: Sequence[str], breaks: Sequence[int] = (), tile: bool = False) -> str:
    """Return a right program with new kernels at these places, and `tile` before each kernel."""
    edges = [0, *sorted(breaks), len(chain)]
    parts = [" ".join(chain[a:b]) for a, b in pairwise(edges) if a < b]
    return " / ".join(f"{TILE} {part}" if tile else part for part in parts)


def read_task(row: Row) -> tuple[list[str], int]:
    """Return the chain of a row and the seed of its known input."""
    return read_metadata(row, "kernel_tasks", lambda about: (list(about["chain"]), int(about["seed"])))


def describe_run(text: str, row: Row) -> str:
    """Return what the verifier says of a program: its passes on the known input, or that it is wrong."""
    chain, seed = read_task(row)
    kernels = read_program(text)
    if kernels is None:
        return "had nothing: wrong"
    profile = run_program(kernels, chain, seed, seed)
    shown = " ".join(text.split())
    return f"had {shown}: {profile.passes} passes" if is_right(profile.output, chain, seed) else f"had {shown}: wrong"


def kernel_tasks(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    skills: Annotated[list[Literal["task", "generate", "optimise", "plan"]], Field(min_length=1)] = ["task"],  # noqa: B006
    lengths: Annotated[list[Annotated[int, Field(ge=2, le=6)]], Field(min_length=1)] = [3, 4],  # noqa: B006
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` chains of operations to be written as programs, for the train or test split.

    `lengths` of chains are the difficulty; rows cycle through them and through `skills`, which is the family. The
    prompt is the chain alone (`task`), with a plan (`generate`), with a slow or wrong program and what the verifier
    says of it (`optimise`), or a request for a plan (`plan`). The answer is the fastest program, of `plan` the plan.
    Raise StepError if there are too few.
    """
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row | None:
        skill, length = skills[len(rows) % len(skills)], lengths[len(rows) // len(skills) % len(lengths)]
        chain = [OPERATIONS[int(i)] for i in rng.integers(len(OPERATIONS) - 1, size=length)]
        if rng.random() < 0.5:
            chain[-1] = "sum"
        about = {"chain": chain, "seed": int(rng.integers(2**20))}
        plan, text = write_plan(chain), " ".join(chain)
        if not is_in_split(make_row("kernel", text, None, {})["id"], split, test_share):
            return None
        if skill == "optimise":
            row = make_row(skill, text, None, about)
            had = _draw_program(chain, rng, fused=0.3, wrong=0.2)
            text = f"{text} {describe_run(had, row)}"
        text = {"generate": f"{text} {plan}", "plan": f"plan {text}"}.get(skill, text)
        answer = plan if skill == "plan" else write_program(chain, tile="tile" in plan)
        return make_row(skill, text, answer, about, salt=skill)

    return draw_rows(draw, size, MAX_DRAWS * size, "kernel_tasks", split, "lower `size` or raise `lengths`")


def write_plan(chain: Sequence[str]) -> str:
    """Return the plan for a chain."""
    return "fuse tile" if "sum" in chain else "fuse"


def _draw_program(chain: Sequence[str], rng: np.random.Generator, *, fused: float, wrong: float) -> str:
    written = list(chain)
    if rng.random() < wrong:
        written[int(rng.integers(len(written)))] = OPERATIONS[int(rng.integers(len(OPERATIONS)))]
    breaks = [place for place in range(1, len(written)) if rng.random() >= fused]
    return write_program(written, breaks, tile=bool(rng.random() < fused))


def kernel_writer(
    row: Row, rng: np.random.Generator, *, fused: Rate = 1.0, wrong: Rate = 0.0, cheats: Rate = 0.0
) -> str:
    """Write a program: fastest with `fused: 1`, else operations are fused and kernels tiled at that rate.

    At the rate `wrong` an operation is another one, at the rate `cheats` the program is `stored` or `reference`. A plan
    is written as it is.
    """
    if row["family"] == "plan":
        return str(row["answer"])
    chain, _ = read_task(row)
    if rng.random() < cheats:
        return (STORED, REFERENCE)[int(rng.integers(2))]
    if fused == 1 and not wrong:
        return write_program(chain, tile="sum" in chain)
    return _draw_program(chain, rng, fused=fused, wrong=wrong)


def kernel_verifier(turns: Sequence[RoleTurn], row: Row) -> str:
    """Run the last program, and say what it was with its passes, or that it is wrong: a script for a role."""
    return describe_run(turns[-1].text, row) if turns else ""


NAMED = re.compile(rf"\b(?:{STORED}|{REFERENCE})\b")
"""What is no program of one's own, wherever it stands in a text."""
