"""Tools that somebody wrote: their code runs in the sandbox and nowhere else, in their tests as in every later call."""

from functools import lru_cache

from learning.sandbox.run import run
from schemas.agent import MadeTool

LONGEST = 10_000
"""Characters of an answer."""
CALL = """
import contextlib, sys
scope, query = {"__name__": "tool"}, sys.stdin.read()
with contextlib.redirect_stdout(sys.stderr):
    with open("tool.py", encoding="utf-8") as file:
        exec(compile(file.read(), "tool.py", "exec"), scope)
    answer = str(scope[NAME](query))
sys.stdout.write(answer)
"""
"""What the sandbox runs around a tool: what the tool prints is no answer."""


def called(query: str, *, tool: MadeTool) -> str:
    """What the tool gives for a query. Raises ValueError with the last words of a call that failed.

    A tool is a function of its query: what was asked before is not run again.
    """
    return _called(tool.name, tool.code, tool.seconds, tool.memory_mb, query)


@lru_cache(maxsize=4096)
def _called(name: str, code: str, seconds: float, memory_mb: int, query: str) -> str:
    ran = run(f"NAME = {name!r}{CALL}", stdin=query, files={"tool.py": code}, seconds=seconds, memory_mb=memory_mb)
    if ran.timed_out:
        raise ValueError(f"no answer within {seconds:g} seconds")
    if ran.code:
        raise ValueError(ran.told or (ran.stderr.strip().splitlines() or ["it failed"])[-1])
    return ran.stdout[:LONGEST]


def failures(tool: MadeTool) -> list[str]:
    """What is wrong with a tool by its own unit tests, a sentence for each that fails; none: it passes.

    Answers are compared here, out of the reach of the code that gave them.
    """
    found = []
    for case in tool.tests:
        try:
            answer = called(case.query, tool=tool)
        except ValueError as error:
            found.append(f"{tool.name}({case.query!r}) fails: {error}")
            continue
        if answer != case.answer:
            found.append(f"{tool.name}({case.query!r}) gives {answer!r}, its test wants {case.answer!r}")
    return found
