"""Rewards of Python programs, which run in the sandbox: tests that pass, and predictions of a program's variables.

The program is the last fenced block of a completion, or the whole completion. Tests are the list `tests` in a row's
metadata: `assert add(1, 2) == 3` with a literal on the right (MBPP), or `{"input": …, "output": …}`, what the program
reads and prints (APPS). Output is compared without white space at the ends of lines.
"""

import ast
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from learning.data.rows import Row, read_metadata
from learning.sandbox.programs import evaluate_expressions, extract_program, parse_literal, run_program
from schemas.errors import StepError

Seconds = Annotated[float, Field(gt=0)]
Megabytes = Annotated[int, Field(ge=32)]
VARIABLE = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*(\S.*?)\s*")


def passed(
    rows: list[Row],
    completions: list[str],
    *,
    partial: bool = False,
    seconds: Seconds = 5.0,
    memory_mb: Megabytes = 256,
) -> list[float | None]:
    """1 if the program passes all tests of its row, else 0 (`partial`: the share of tests); None without tests.

    `seconds` and `memory_mb` limit each run: one of all assertions, and one of each input. Raise StepError for a test
    of another form.
    """
    scores: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        tests = read_tests(row)
        if tests is None:
            scores.append(None)
            continue
        share = sum(run_tests(extract_program(text), tests, seconds, memory_mb)) / len(tests)
        scores.append(share if partial else float(share == 1))
    return scores


def states(rows: list[Row], completions: list[str], *, partial: bool = False) -> list[float | None]:
    """1 if the lines `name = value` of the completion give every variable of the row's `states`, else 0.

    `partial`: the share of the variables. A name that is no variable of the program gives 0. None for a row without
    states. (CodeRL+, Jiang et al. 2025.)
    """
    scores: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        expected = read_metadata(row).get("states")
        if not isinstance(expected, dict) or not expected:
            scores.append(None)
            continue
        lines = [match for line in text.splitlines() if (match := VARIABLE.fullmatch(line[:1000]))]
        predicted = {match[1]: match[2] for match in lines}
        right = sum(name in predicted and are_equal(predicted[name], value) for name, value in expected.items())
        share = right / len(expected) if predicted.keys() <= expected.keys() else 0.0
        scores.append(share if partial else float(share == 1))
    return scores


def run_tests(program: str, tests: Sequence[Any], seconds: float, memory_mb: int) -> list[bool]:
    """Return whether a program passes each test."""
    asserted = {i: parse_assertion(test) for i, test in enumerate(tests) if isinstance(test, str)}
    values = iter(
        evaluate_expressions(program, [call for call, _ in asserted.values()], seconds=seconds, memory_mb=memory_mb)
        if asserted
        else []
    )
    results = []
    for i, test in enumerate(tests):
        if i in asserted:
            value = next(values)
            results.append(value is not None and are_equal(value, asserted[i][1]))
        else:
            output = run_program(program, test["input"], seconds=seconds, memory_mb=memory_mb)
            results.append(output is not None and _strip_lines(output) == _strip_lines(test["output"]))
    return results


def read_tests(row: Row) -> list[Any] | None:
    """Return the tests of a row; None without any. Raise StepError for a test of an unknown form."""
    tests = read_metadata(row).get("tests")
    if isinstance(tests, str):
        tests = [tests]
    if not tests:
        return None
    for test in tests if isinstance(tests, list) else [tests]:
        if isinstance(test, str):
            if parse_assertion(test) is not None:
                continue
        elif isinstance(test, dict) and all(isinstance(test.get(key), str) for key in ("input", "output")):
            continue
        raise StepError(
            f"reward programs.passed: row {row['id']} has a test of another form: {str(test)[:80]!r}; write "
            '`assert f(1) == 2` with a literal on the right, or {"input": text, "output": text}'
        )
    return list(tests)


def parse_assertion(test: str) -> Any:
    """Return the expression and the literal, as texts, of `assert EXPRESSION == LITERAL`; None for another text."""
    try:
        (statement,) = ast.parse(test.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            literal = ast.unparse(right)
            return None if parse_literal(literal) is None else (ast.unparse(left), literal)
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=inner)):
            return f"bool({ast.unparse(inner)})", "False"
        case ast.Assert(test=inner) if not isinstance(inner, ast.Compare | ast.BoolOp):
            return f"bool({ast.unparse(inner)})", "True"
    return None


def are_equal(text: str, expected: str) -> bool:
    """Return whether two texts are literals of equal value, or equal texts."""
    a, b = parse_literal(text), parse_literal(expected)
    try:
        return text.strip() == expected.strip() if a is None or b is None else bool(a == b)
    except RecursionError:
        return False


def _strip_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
