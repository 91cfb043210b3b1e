"""Tools that a model or a person wrote: their code runs in the sandbox and nowhere else, in tests as in later calls."""

import json
from functools import lru_cache

from learning.sandbox.run import run
from schemas.agent import MadeTool

LONGEST = 10_000
"""Characters of an answer."""
CALL = """
import json, os, sys
scope, query = {"__name__": "tool"}, sys.stdin.read()
with open("tool.py", encoding="utf-8") as file:
    exec(compile(file.read(), "tool.py", "exec"), scope)
os.write(3, json.dumps({"answer": str(scope[NAME](query))[:LONGEST]}).encode())
"""
"""What the sandbox runs around a tool. The answer is a message: what the tool prints, in whatever way, is none."""


def called(query: str, *, tool: MadeTool) -> str:
    """What the tool gives for a query. Raises ValueError with the last words of a call that failed.

    A tool is a function of its query: what was asked before is not run again.
    """
    return _run_tool(tool.name, tool.code, tool.seconds, tool.memory_mb, query)


@lru_cache(maxsize=4096)
def _run_tool(name: str, code: str, seconds: float, memory_mb: int, query: str) -> str:
    said: list[bytes] = []
    call = f"NAME, LONGEST = {name!r}, {LONGEST}{CALL}"
    files = {"tool.py": code}
    ran = run(call, stdin=query, files=files, seconds=seconds, memory_mb=memory_mb, answer=said.append)
    if ran.timed_out:
        raise ValueError(f"no answer within {seconds:g} seconds")
    if ran.code:
        raise ValueError(ran.told or (ran.stderr.strip().splitlines() or ["it failed"])[-1])
    return _parse_answer(said)


def _parse_answer(said: list[bytes]) -> str:
    """The one answer among a tool's messages, empty without any. Raises ValueError for what is none, and for several.

    A tool that writes the message itself has said what its function might have returned; tests judge it all the same.
    """
    if not said:
        return ""
    try:
        (message,) = said
        found = json.loads(message)
    except (ValueError, RecursionError):
        raise ValueError("its answer is not one message in JSON") from None
    if not isinstance(found, dict) or found.keys() != {"answer"} or not isinstance(found["answer"], str):
        raise ValueError("its answer is not a text")
    return found["answer"][:LONGEST].encode(errors="replace").decode()


def list_failures(tool: MadeTool) -> list[str]:
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
