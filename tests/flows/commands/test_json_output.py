"""`--json`: nothing but JSON on stdout, with what the table says, and progress elsewhere."""

import json
from types import SimpleNamespace

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from flows.champions import promotion
from flows.champions.promotion import Verdict
from flows.cli import app
from flows.evidence import commands
from flows.execution import approval
from flows.history import exchange
from flows.planning import fetching
from flows.planning.fetching import Fetched
from flows.publishing import hub
from lineage.exchange.sharing import Moved
from lineage.registry import rollback
from schemas.recipe import load

MOVED = Moved([{"step": "tuned", "kind": "sft", "key": "ab" * 32, "recipe": "small", "seed": 1}], 2, 7, ("k1",), ())
TRANSFER = {
    "artifacts": [{"step": "tuned", "kind": "sft", "key": "ab" * 32, "recipe": "small"}],
    "existed": 2,
    "files": 7,
    "untrusted_keys": ["k1"],
    "trusted_keys": [],
}
DECISION = {"gate": 0, "decision": "approve", "name": "ada", "reason": "fine", "at": "2026-01-01T00:00:00+00:00"}
HUB = Fetched("hub:someone/smol", "ab" * 20, 98_000_000, True)


def reports(value):
    """A function that prints progress on the console that it receives, and returns a value."""

    def call(*words, **options):
        for console in words:
            if hasattr(console, "print"):
                console.print("progress")
        return value

    return call


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch, tmp_path):
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    (tmp_path / ".posttrain/runs/run-1").mkdir(parents=True)
    monkeypatch.setattr("flows.runs.lookup.find_run", lambda run, layout: run)
    monkeypatch.setattr(approval, "decide_gates", reports([DECISION]))
    monkeypatch.setattr(
        promotion, "promote_step", lambda *_, **__: Verdict("chat", True, "champion of chat: version 2")
    )
    champions = (SimpleNamespace(version=3, key="cd"), SimpleNamespace(version=2, key="ab"))
    monkeypatch.setattr(rollback, "roll_back", lambda *_: champions)
    monkeypatch.setattr(hub, "push_to_hub", lambda *_, **__: "https://hub.example/o/m")
    monkeypatch.setattr("lineage.exchange.sharing.push", lambda *_, **__: MOVED)
    monkeypatch.setattr("lineage.exchange.sharing.pull", lambda *_, **__: MOVED)
    monkeypatch.setattr(exchange, "describe_remote", str)
    monkeypatch.setattr(load, "load_recipe", lambda *_, **__: None)
    monkeypatch.setattr(fetching, "fetch_hub", lambda *_, **__: iter([HUB]))
    monkeypatch.setattr(commands, "measure_outcome", reports(SimpleNamespace(model_dump=lambda mode: {"id": "x"})))
    monkeypatch.setattr(commands, "verify_outcome", reports(False))


@pytest.mark.parametrize(
    ("words", "content", "code"),
    [
        ("approve run-1 exam --approve --reason fine", [DECISION], 0),
        (
            "promote a --gate b --name chat",
            {"name": "chat", "moved": True, "text": "champion of chat: version 2"},
            0,
        ),
        ("rollback chat", {"name": "chat", "before": 3, "version": 2, "key": "ab"}, 0),
        ("push --all", TRANSFER, 0),
        ("push hub m o/m", {"url": "https://hub.example/o/m"}, 0),
        ("pull tuned", TRANSFER, 0),
        (
            "fetch r.yaml",
            [{"reference": HUB.reference, "commit": HUB.commit, "size": HUB.size, "is_pinned": True}],
            0,
        ),
        ("evidence a b", [{"id": "x"}, {"id": "x"}], 0),
        ("evidence a --verify", [{"id": "a", "same_digits": False}], 1),
    ],
)
def test_stdout_is_json(words, content, code):
    done = CliRunner().invoke(app, [*words.split(), "--json"], catch_exceptions=False)
    assert done.exit_code == code
    assert json.loads(done.stdout) == content


WITHOUT_TABLES = {"init", "show", "schema", "logs", "path", "export", "serve", "up", "deploy", "mcp"}
"""Verbs that print text, a file or what they do."""


def test_every_verb_that_prints_a_table_also_prints_json():
    verbs = get_command(app).commands.items()
    with_json = {name for name, verb in verbs if any("--json" in option.opts for option in verb.params)}
    assert {name for name, _ in verbs} - with_json == WITHOUT_TABLES


def test_without_the_option_a_person_reads_the_same():
    done = CliRunner().invoke(app, ["push", "--all"], catch_exceptions=False)
    assert "sent tuned (abababababababab)" in done.stdout
    assert "1 artifact sent, 2 existed already; 7 files" in done.stdout
