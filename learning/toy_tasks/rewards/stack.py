"""Rewards from running programs of the stack machine on the tests of a problem."""

from learning.data.rows import Row, read_metadata
from learning.toy_tasks.stack_programs import LENGTH, run_program


def passed(rows: list[Row], completions: list[str], *, failed: float = 0.0, invalid: float = 0.0) -> list[float | None]:
    """1 if a program of three tokens passes all tests of its row, `failed` if it does not, `invalid` if it is none.

    None for a row without tests.
    """
    return [
        _score(read_metadata(row).get("tests"), text, failed, invalid)
        for row, text in zip(rows, completions, strict=True)
    ]


def _score(tests: list[list[int]] | None, text: str, failed: float, invalid: float) -> float | None:
    if tests is None:
        return None
    tokens = text[:200].split()
    try:
        right = len(tokens) == LENGTH and all(run_program(tokens, x) == y for x, y in tests)
    except ValueError:
        return invalid
    return invalid if len(tokens) != LENGTH else 1.0 if right else failed
