"""Tools with code written by a model or a user: they run only in the sandbox, in tests and in later calls."""

import json
from functools import lru_cache

from learning.sandbox.run import run
from schemas.agent import MadeTool

LONGEST = 10_000
"""Limit of characters of an answer."""
CALL = """
import json, os, sys
scope, query = {"__name__": "tool"}, sys.stdin.read()
with open("tool.py", encoding="utf-8") as file:
    exec(compile(file.read(), "tool.py", "exec"), scope)
os.write(3, json.dumps({"answer": str(scope[NAME](query))[:LONGEST]}).encode())
"""
"""The program that calls a tool in the sandbox. The answer is a message, so that printed output is not an answer."""


def call_made_tool_(query: str, *, tool: MadeTool) -> str:
    """Return the tool's answer to a query; raise ValueError with the last line of the error if the call fails.

    A tool is a function of its query: results are cached.
    """
    return _run_tool(tool.name, tool.code, tool.seconds, tool.memory_mb, query)


@lru_cache(maxsize=4096)
def _run_tool(name: str, code: str, seconds: float, memory_mb: int, query: str) -> str:
    messages: list[bytes] = []
    call = f"NAME, LONGEST = {name!r}, {LONGEST}{CALL}"
    files = {"tool.py": code}
    ran = run(call, stdin=query, files=files, seconds=seconds, memory_mb=memory_mb, answer=messages.append)
    if ran.timed_out:
        raise ValueError(f"no answer within {seconds:g} seconds")
    if ran.code:
        raise ValueError(ran.reason or (ran.stderr.strip().splitlines() or ["it failed"])[-1])
    return _parse_answer(messages)


def _parse_answer(messages: list[bytes]) -> str:
    """Return the answer in a tool's messages, empty without any; raise ValueError for an invalid or a second message.

    A tool that writes the message itself could as well return that text; its tests check it either way.
    """
    if not messages:
        return ""
    try:
        (message,) = messages
        value = json.loads(message)
    except (ValueError, RecursionError):
        raise ValueError("its answer is not one message in JSON") from None
    if not isinstance(value, dict) or value.keys() != {"answer"} or not isinstance(value["answer"], str):
        raise ValueError("its answer is not a text")
    return value["answer"][:LONGEST].encode(errors="replace").decode()


def list_failures(tool: MadeTool) -> list[str]:
    """Return a sentence for each of a tool's own unit tests that fails; empty if it passes.

    Answers are compared in this process, which the tool's code cannot influence.
    """
    failures = []
    for case in tool.tests:
        try:
            answer = call_made_tool_(case.query, tool=tool)
        except ValueError as error:
            failures.append(f"{tool.name}({case.query!r}) fails: {error}")
            continue
        if answer != case.answer:
            failures.append(f"{tool.name}({case.query!r}) gives {answer!r}, its test wants {case.answer!r}")
    return failures
