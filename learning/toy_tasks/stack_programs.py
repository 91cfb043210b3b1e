"""Programs of three tokens for a stack machine, to be found from four pairs of an input and an output.

The stack begins with the input. `p2` pushes 2; `add` and `mul` replace the two topmost numbers by their sum or product,
or the only one by its sum or product with itself. The output is the topmost number.
"""

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, choose, is_in_split, make_row, read_metadata

CONSTANTS = (2, 3, 4, 5)
TOKENS = ("add", "mul", *(f"p{n}" for n in CONSTANTS))
LENGTH, PAIRS, INPUTS = 3, 4, range(1, 10)


def run_program(tokens: Sequence[str], number: int) -> int:
    """Return the output of a program for an input. Raise ValueError for a token that is none."""
    stack = [number]
    for token in tokens:
        if token in ("add", "mul"):
            one = stack.pop()
            other = stack.pop() if stack else one
            stack.append(one + other if token == "add" else one * other)
        elif token in TOKENS:
            stack.append(int(token[1:]))
        else:
            raise ValueError(f"{token!r} is no token of a program")
    return stack[-1]


def list_functions() -> dict[tuple[int, ...], list[str]]:
    """Return the first program of each function that changes with its input, by its outputs."""
    found: dict[tuple[int, ...], list[str]] = {}
    for tokens in product(TOKENS, repeat=LENGTH):
        outputs = tuple(run_program(tokens, number) for number in INPUTS)
        if len(set(outputs)) > 1:
            found.setdefault(outputs, list(tokens))
    return found


def stack_programs(*, split: Split, size: Size, seed: int = 0, test_share: TestShare = 0.25) -> list[Row]:
    """Generate problems: four pairs of input and output, split by their text. Both splits have the same functions.

    Raise StepError if there are fewer than `size`.
    """
    rows = [
        make_row("stack", " ".join(f"{x}>{y}" for x, y in pairs), " ".join(tokens), {"tests": pairs})
        for tokens in list_functions().values()
        for inputs in combinations(INPUTS, PAIRS)
        for pairs in [[[x, run_program(tokens, x)] for x in inputs]]
    ]
    return choose("stack_programs", split, [r for r in rows if is_in_split(r["id"], split, test_share)], size, seed)


def stack_programmer(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the row's program, or at the rate `error_rate` one with another token somewhere, which fails a test."""
    tokens = str(row["answer"]).split()
    if rng.random() >= error_rate:
        return " ".join(tokens)
    tests = read_metadata(row, "stack_programs", lambda metadata: metadata["tests"])
    places = [(int(place), token) for place in rng.permutation(LENGTH) for token in rng.permutation(TOKENS)]
    changed = ([*tokens[:place], str(token), *tokens[place + 1 :]] for place, token in places)
    return " ".join(next(one for one in changed if any(run_program(one, x) != y for x, y in tests)))
