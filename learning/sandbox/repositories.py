"""Tests of a repository that a model may have changed, run in the sandbox.

A test is an expression with the value that it should have: `{"ops.add(2, 3)": 5}`. The values stay in this process and
are compared here, so that no program can read or forge a verdict; a function that knows its tests by heart passes them,
as everywhere: hidden tests are the remedy.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from learning.sandbox.programs import parse_literal
from learning.sandbox.run import run

LONGEST = 500
"""Most characters of a value's text, and of an error."""
MAX_TESTS = 100
"""Most tests of a repository."""
SITE = "site-packages"
"""Folder of packages, beside that of the repository."""
RUNNER = """
import importlib, json, os, sys
asked = json.loads(ASKED)
sys.path[:0] = asked["path"]
values = []
for expression in asked["expressions"]:
    try:
        module = expression.partition("(")[0].rpartition(".")[0]
        importlib.import_module(module)
        first = module.partition(".")[0]
        values.append([True, repr(eval(expression, {first: sys.modules[first]}))[:LONGEST]])
    except BaseException as error:
        values.append([False, f"{type(error).__name__}: {error}"[:LONGEST]])
os.write(3, json.dumps(values).encode())
"""


@dataclass(frozen=True)
class Check:
    """What came of a test."""

    passed: bool
    got: str
    """Text of the value, or the error."""


def run_tests(
    files: Mapping[str, str],
    tests: Mapping[str, Any],
    *,
    install: str = "path .",
    packages: Mapping[str, Mapping[str, str]] = {},
    seconds: float = 5.0,
    memory_mb: int = 256,
) -> dict[str, Check]:
    """Return what came of each test of a repository's files, all run in one process.

    `install` says how the repository is set up (`parse_install`); `packages` are those that it may ask for, name to
    files. Where it cannot be set up, or the process fails, no test passes.
    """
    try:
        folders, names = parse_install(install)
        wanted = {path: text for name in names for path, text in _find_package(packages, name).items()}
    except ValueError as error:
        return dict.fromkeys(tests, Check(False, str(error)))
    expressions = list(tests)[:MAX_TESTS]
    asked = {"path": [f"repository/{folder}" for folder in folders] + [SITE], "expressions": expressions}
    laid = {f"repository/{path}": text for path, text in files.items()} | {f"{SITE}/{p}": t for p, t in wanted.items()}
    messages: list[bytes] = []
    code = f"ASKED, LONGEST = {json.dumps(asked)!r}, {LONGEST}{RUNNER}"
    ran = run(code, files=laid, seconds=seconds, memory_mb=memory_mb, answer=messages.append)
    values = _read_values(messages, len(expressions)) if not ran.code and not ran.reason else None
    if values is None:
        why = ran.reason or (ran.stderr.strip().splitlines() or ["the tests did not end"])[-1]
        return dict.fromkeys(tests, Check(False, why[:LONGEST]))
    checked = {
        name: Check(ok and is_value(text, tests[name]), text)
        for name, (ok, text) in zip(expressions, values, strict=True)
    }
    return {name: checked.get(name, Check(False, f"more than {MAX_TESTS} tests")) for name in tests}


def parse_install(text: str) -> tuple[list[str], list[str]]:
    """Return the folders of a repository that modules are imported from, and the packages that it needs.

    The text has lines, or parts between semicolons: `path src; with tables`. Raise ValueError with the part that cannot
    be read.
    """
    folders: list[str] = []
    names: list[str] = []
    for part in text.replace("\n", ";").split(";"):
        match part.split():
            case []:
                continue
            case ["path", folder] if not folder.startswith("/") and ".." not in PurePosixPath(folder).parts:
                folders.append(folder)
            case ["with", name]:
                names.append(name)
            case _:
                raise ValueError(f"install: `{part.strip()[:80]}` is no `path FOLDER` or `with PACKAGE`")
    return folders, names


def is_value(text: str, expected: Any) -> bool:
    """Return whether a text is the literal of a value that JSON can express; tuples count as lists, 1 is not true."""
    value = parse_literal(text)
    try:
        return value is not None and _same(value[0], expected)
    except RecursionError:
        return False


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(expected, list):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(expected)
            and all(_same(a, b) for a, b in zip(value, expected, strict=True))
        )
    return bool(value == expected)


def _find_package(packages: Mapping[str, Mapping[str, str]], name: str) -> Mapping[str, str]:
    if name not in packages:
        raise ValueError(f"install: there is no package `{name[:80]}`")
    return packages[name]


def _read_values(messages: list[bytes], count: int) -> list[tuple[bool, str]] | None:
    """Return the one message of the process; None if it sent none, several or another one."""
    if len(messages) != 1:
        return None
    try:
        values = json.loads(messages[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list) or len(values) != count:
        return None
    pairs = [(pair[0] is True, pair[1]) for pair in values if isinstance(pair, list) and len(pair) == 2]
    return pairs if len(pairs) == count and all(isinstance(text, str) for _, text in pairs) else None
