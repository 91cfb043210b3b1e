"""Rewards from running programs: tests that are passed, variables that are rightly foretold."""

import json
from typing import Any

from learning.data.rows import Row
from learning.toy_tasks.execution import ProgramError, evaluate, execute


def passed(rows: list[Row], completions: list[str], *, partial: bool = False) -> list[float | None]:
    """1 where a program passes all tests of its row, else 0 (`partial`: the share); what is no program passes none.

    None for a row without tests.
    """
    return [_score_tests(_read_metadata(row), text, partial) for row, text in zip(rows, completions, strict=True)]


def states(rows: list[Row], completions: list[str], *, partial: bool = False) -> list[float | None]:
    """1 where `x=6,y=5` is right about every variable of the row's program, else 0 (`partial`: the share).

    A variable that the program does not have makes it 0. None for a row without states.
    """
    found: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        wanted = _read_metadata(row).get("states")
        if wanted is None:
            found.append(None)
            continue
        said = dict(part.strip().split("=", 1) for part in text.split(",") if "=" in part)
        right = sum(said.get(name, "").strip() == str(value) for name, value in wanted.items())
        share = right / len(wanted) if set(said) <= set(wanted) else 0.0
        found.append(share if partial else float(share == 1))
    return found


def _score_tests(kept: Row, text: str, partial: bool) -> float | None:
    if "tests" not in kept:
        return None
    right = [_runs(text, given, wanted, kept["result"]) for given, wanted in kept["tests"]]
    share = sum(right) / len(right)
    return share if partial else float(share == 1)


def _runs(text: str, given: Row, wanted: Any, result: str | None) -> bool:
    try:
        return (evaluate(text, given) if result is None else execute(text, given).get(result)) == wanted
    except ProgramError:
        return False


def _read_metadata(row: Row) -> Row:
    try:
        found = json.loads(row["metadata"] or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
