"""Coding agents read recipes and runs over MCP: the texts of the command line, and nothing outside the folder."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters

from flows.commands.mcp_server import make_server
from tests.flows.checkout import REPOSITORY

LAB = '''
from tasks.context import Context


def number(context: Context, *, value: int = 1) -> dict[str, int]:
    """Write a number."""
    (context.output("result") / "n.txt").write_text(str(value))
    return {"value": value}
'''
GOOD = """
name: good
stages:
  a: {kind: python, function: {use: "lab:number", value: 3}}
  b: {kind: python, function: {use: "lab:number", value: 4}, inputs: {x: a}}
"""
READERS = ["recipes", "validate", "plan", "explain", "show", "runs", "status", "logs", "report", "lineage", "query"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    for name, text in {"lab.py": LAB, "good.yaml": GOOD, "wrong.yaml": GOOD.replace("kind", "knd")}.items():
        (folder / name).write_text(text)
    (folder / "pyproject.toml").write_text("")
    kept = {name: value for name, value in os.environ.items() if name != "POSTTRAIN_ROOT"}
    command = [sys.executable, "-m", "posttrain", "run", "good.yaml", "--executor", "inprocess"]
    subprocess.run(command, cwd=folder, env={**kept, "PYTHONPATH": str(REPOSITORY)}, check=True, capture_output=True)
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("POSTTRAIN_ROOT", raising=False)


def call(server, *calls: tuple[str, dict]) -> list[tuple[bool, str]]:
    """Whether each call failed, and its text."""

    async def ask():
        async with Client(server) as client:
            results = [await client.call_tool(name, arguments) for name, arguments in calls]
            return [(bool(r.is_error), "".join(part.text for part in r.content)) for r in results]

    return asyncio.run(ask())


def list_files(folder):
    return {
        file.relative_to(folder): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not {"cache", "__pycache__"} & set(file.parts)
    }


def test_an_agent_reads_recipes_and_runs_and_changes_nothing(folder):
    before = list_files(folder)
    results = call(
        make_server(folder),
        ("validate", {"recipe": "good.yaml"}),
        ("plan", {"recipe": "good.yaml"}),
        ("explain", {"recipe": "good.yaml", "step": "b", "overrides": ["stages.b.function.value=5"]}),
        ("report", {}),
        ("lineage", {"target": "b"}),
        ("query", {"sql": "select step from steps order by step"}),
    )
    assert [failed for failed, _ in results] == [False] * 6, results
    validated, planned, explained, reported, traced, rows = (text for _, text in results)
    assert validated == "good.yaml: ok, 2 steps\n"
    assert "2 of 2 steps are cached" in planned
    assert "function.value: 4 → 5" in explained
    assert [(step["step"], step["metrics"]["value"]) for step in json.loads(reported)] == [("a", 3), ("b", 4)]
    assert json.loads(traced)
    assert json.loads(rows) == [{"step": "a"}, {"step": "b"}]
    assert list_files(folder) == before


def test_errors_are_those_of_the_command_line(folder):
    unknown_key, no_step, no_run = call(
        make_server(folder),
        ("validate", {"recipe": "wrong.yaml"}),
        ("logs", {"step": "c"}),
        ("status", {"run": "never"}),
    )
    assert unknown_key[0]
    assert unknown_key[1].startswith("wrong.yaml:4:")
    assert "add `kind:`" in unknown_key[1]
    assert no_step == (True, "no step `c` in that run; steps: a, b\n")
    assert no_run[0]
    assert no_run[1].startswith("no run `never`; ")


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("validate", {"recipe": "../good.yaml"}, "is outside the folder"),
        ("show", {"recipe": "/etc/hostname"}, "is outside the folder"),
        ("show", {"recipe": "link.yaml"}, "is outside the folder"),
        ("lineage", {"target": "../lab"}, "is outside the folder"),
        ("plan", {"recipe": "--dvc"}, "--dvc:1:1: no such file"),
        ("plan", {"recipe": "good.yaml", "overrides": ["stages.a.function.use=os:system"]}, "numbers, words and lists"),
        ("plan", {"recipe": "good.yaml", "overrides": ['stages.a.function.use="os\\x3asystem"']}, "numbers, words"),
        ("plan", {"recipe": "good.yaml", "overrides": ["stages.a.inputs={x: path:/etc}"]}, "numbers, words and lists"),
        ("logs", {"step": "a\0b"}, "cannot be printed"),
        ("query", {"sql": "select * from read_csv('lab.py')"}, "disabled by configuration"),
    ],
)
def test_nothing_outside_the_folder_is_named(folder, tmp_path, tool, arguments, message):
    (tmp_path / "outside.yaml").write_text(GOOD)
    (folder / "link.yaml").unlink(missing_ok=True)
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    ((failed, text),) = call(make_server(folder), (tool, arguments))
    assert failed
    assert message in text


def test_runs_start_only_if_they_are_allowed(folder):
    refused = call(make_server(folder), ("run", {"recipe": "good.yaml"}))
    assert refused == [(True, "Unknown tool: run")]
    ((failed, ran),) = call(make_server(folder, allow_run=True), ("run", {"recipe": "good.yaml"}))
    assert not failed, ran
    assert "b: cached" in ran
    assert ran.endswith("exit code 0")


def test_the_command_serves_over_stdin_and_stdout(folder):
    async def list_tools():
        environment = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        words = ["-m", "posttrain", "mcp"]
        server = StdioServerParameters(command=sys.executable, args=words, cwd=folder, env=environment)
        async with Client(server) as client:
            listed = (await client.list_tools()).tools
            result = await client.call_tool("show", {"recipe": "good.yaml"})
            return listed, result

    listed, result = asyncio.run(list_tools())
    assert [tool.name for tool in listed] == READERS
    assert all(tool.annotations.read_only_hint for tool in listed)
    assert not result.is_error
    assert "name: good" in result.content[0].text
