"""Rewards of programs in the tiny language of `learning.toy_tasks.kernels`: by running them, and by a rubric."""

from learning.data.rows import Row
from learning.toy_tasks.kernels import NAMED, TILE, is_right, read_program, read_task, run_program

FRESH = 1 << 20
"""Added to the seed of the known input for one that no program has seen."""


def executed(rows: list[Row], completions: list[str], *, fresh: bool = False) -> list[float | None]:
    """0 for a program with a wrong output, 0.5 for a right one as slow as one kernel per operation, 1 for the fastest.

    Between them the score falls evenly with the passes over memory. `fresh`: on an input of which no output is stored.
    """
    return [_run(row, text, fresh) for row, text in zip(rows, completions, strict=True)]


def rubric(rows: list[Row], completions: list[str]) -> list[float | None]:
    """The share of advanced techniques that a program uses, −1 for one that copies: stored output, or the reference.

    Techniques are the fusion of operations, and, for a chain with `sum`, tiled kernels. 0 for what is no program.
    """
    return [_judge(row, text) for row, text in zip(rows, completions, strict=True)]


def _run(row: Row, text: str, fresh: bool) -> float:
    chain, known = read_task(row)
    kernels = read_program(text)
    if kernels is None:
        return 0.0
    seed = known + FRESH * fresh
    profile = run_program(kernels, chain, known, seed)
    if not is_right(profile.output, chain, seed):
        return 0.0
    plain, best = 2 * len(chain), 2
    return 0.5 + 0.5 * min(1.0, max(0.0, (plain - profile.passes) / (plain - best)))


def _judge(row: Row, text: str) -> float:
    chain, _ = read_task(row)
    if NAMED.search(text):
        return -1.0
    kernels = read_program(text)
    if kernels is None:
        return 0.0
    operations = sum(len(words) - (words[0] == TILE) for words in kernels)
    fused = (operations - len(kernels)) / max(1, operations - 1)
    if "sum" not in chain:
        return fused
    return (fused + sum(words[0] == TILE for words in kernels) / len(kernels)) / 2
