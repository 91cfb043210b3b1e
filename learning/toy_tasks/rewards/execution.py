"""Rewards from running programs: tests that pass, and predictions of a program's variables."""

from typing import Any

from learning.data.rows import Row, read_metadata
from learning.sandbox.programs import evaluate_expressions, parse_literal
from learning.toy_tasks.execution import LanguageError, ProgramError, evaluate, execute


def passed(rows: list[Row], completions: list[str], *, partial: bool = False) -> list[float | None]:
    """1 if the program passes all tests of its row, else 0 (`partial`: the share of tests); None without tests."""
    return [_score_tests(read_metadata(row), text, partial) for row, text in zip(rows, completions, strict=True)]


def states(rows: list[Row], completions: list[str], *, partial: bool = False) -> list[float | None]:
    """1 if the completion (`x=6,y=5`) predicts every variable of the row's program, else 0 (`partial`: the share).

    A variable that the program does not have gives 0. None for a row without states.
    """
    scores: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        states = read_metadata(row).get("states")
        if states is None:
            scores.append(None)
            continue
        predicted = dict(part.strip().split("=", 1) for part in text.split(",") if "=" in part)
        right = sum(predicted.get(name, "").strip() == str(value) for name, value in states.items())
        share = right / len(states) if set(predicted) <= set(states) else 0.0
        scores.append(share if partial else float(share == 1))
    return scores


def _score_tests(metadata: Row, text: str, partial: bool) -> float | None:
    if "tests" not in metadata:
        return None
    passes = (_passes_test(text, inputs, expected, metadata["result"]) for inputs, expected in metadata["tests"])
    # A test may wait for the sandbox's time limit: without `partial`, the first that fails is the last that runs.
    return sum(passes) / len(metadata["tests"]) if partial else float(all(passes))


def _passes_test(text: str, inputs: Row, expected: Any, result: str | None) -> bool:
    """Return whether a program computes the expected value from its inputs.

    What the small language lacks, such as a `for` loop, runs as Python in the sandbox.
    """
    try:
        return (evaluate(text, inputs) if result is None else execute(text, inputs).get(result)) == expected
    except LanguageError:
        program, expression = ("", text.strip()) if result is None else (text.strip(), result)
        (value,) = evaluate_expressions(program, [expression], variables=inputs)
        return value is not None and parse_literal(value) == (expected,)
    except ProgramError:
        return False
