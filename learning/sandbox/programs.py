"""Python programs that a model wrote, run in the sandbox: values of expressions, output, and last values of variables.

Whatever a program computes leaves the sandbox as text and is parsed as a literal, never evaluated. What a test expects
stays in this process, so a program cannot read it.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from learning.sandbox.run import run

FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
LONGEST = 10_000
"""Limit of characters of a value's text."""
MAX_VALUES = 100
"""Limit of expressions, and of variables of one program."""
FILE = "written.py"
START = """
import json, os, sys
scope = {"__name__": "__main__"}
with open("asked.json", encoding="utf-8") as file:
    asked = json.load(file)
scope.update(asked["variables"])
with open(FILE, encoding="utf-8") as file:
    code = compile(file.read(), FILE, "exec")
def show(value):
    return repr(value)[:LONGEST]
def tell(value):
    os.write(3, json.dumps(value).encode())
"""
EVALUATE = """
exec(code, scope)
values = []
for expression in asked["expressions"]:
    try:
        values.append(show(eval(expression, scope)))
    except Exception:
        values.append(None)
tell(values)
"""
TRACE = """
last, frames = {}, []
def leave(frame, event, arg):
    if event == "return":
        last.update(frame.f_locals)
    return leave
def enter(frame, event, arg):
    if frames or frame.f_code.co_filename != FILE or frame.f_code.co_name.startswith("<"):
        return None
    frames.append(frame)
    return leave
exec(code, scope)
if asked["expressions"]:
    call = compile(asked["expressions"][0], "call", "eval")
    sys.settrace(enter)
    try:
        eval(call, scope)
    finally:
        sys.settrace(None)
else:
    given = asked["variables"]
    last = {name: value for name, value in scope.items() if name not in given or value != given[name]}
tell({name: show(value) for name, value in list(last.items())[:MAX_VALUES] if not name.startswith("_")})
"""


def extract_program(text: str) -> str:
    """Return the last fenced block of a completion; without one the whole text."""
    blocks = FENCE.findall(text)
    return blocks[-1] if blocks else text.strip()


def evaluate_expressions(
    program: str,
    expressions: Sequence[str],
    *,
    variables: Mapping[str, Any] = {},
    seconds: float = 5.0,
    memory_mb: int = 256,
) -> list[str | None]:
    """Return the `repr` of each expression after a program has run with some variables; None for one that fails.

    All are None if the program fails, runs out of time or writes a message of its own.
    """
    message = _run(EVALUATE, program, expressions, variables, seconds, memory_mb)
    right = isinstance(message, list) and len(message) == len(expressions)
    values = message if right else [None] * len(expressions)
    return [value if isinstance(value, str) else None for value in values]


def trace_variables(
    program: str,
    call: str | None = None,
    *,
    variables: Mapping[str, Any] = {},
    seconds: float = 5.0,
    memory_mb: int = 256,
) -> dict[str, str] | None:
    """Return the last values, as `repr`, of the variables of the function that `call` calls; None if it fails.

    Without a call they are the variables that the program adds or changes. Values that are no literals, such as
    functions, and names with a leading underscore are left out.
    """
    message = _run(TRACE, program, [] if call is None else [call], variables, seconds, memory_mb)
    if not isinstance(message, dict):
        return None
    return {n: value for n, value in message.items() if isinstance(value, str) and parse_literal(value) is not None}


def run_program(program: str, stdin: str, *, seconds: float = 5.0, memory_mb: int = 256) -> str | None:
    """Return what a program prints when it reads `stdin`; None if it fails."""
    ran = run(program, stdin=stdin, seconds=seconds, memory_mb=memory_mb)
    return None if ran.code or ran.timed_out or ran.reason else ran.stdout


def parse_literal(text: str) -> tuple[Any] | None:
    """Return the value of a Python literal as a tuple of one; None for other texts."""
    if len(text) > LONGEST:
        return None
    try:
        return (ast.literal_eval(text.strip()),)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, ArithmeticError):
        return None


def _run(
    how: str, program: str, expressions: Sequence[str], variables: Mapping[str, Any], seconds: float, memory_mb: int
) -> Any:
    """Return the one message of a program in the sandbox; None if it fails or sends none or several."""
    messages: list[bytes] = []
    constants = f"FILE, LONGEST, MAX_VALUES = {FILE!r}, {LONGEST}, {MAX_VALUES}"
    asked = {"expressions": list(expressions[:MAX_VALUES]), "variables": dict(variables)}
    files = {FILE: program.encode(errors="replace").decode(), "asked.json": json.dumps(asked)}
    code = constants + START + how
    ran = run(code, files=files, seconds=seconds, memory_mb=memory_mb, answer=messages.append)
    if ran.code or ran.timed_out or ran.reason or len(messages) != 1:
        return None
    try:
        return json.loads(messages[0])
    except (ValueError, RecursionError):
        return None
