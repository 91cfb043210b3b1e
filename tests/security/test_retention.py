"""What `gc` never removes, whatever an insider takes away: it follows the signed history, or refuses."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.execution.active_runs import mark_active
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.artifacts.seal import write_seal
from lineage.artifacts.store import Store
from lineage.audit.approvals import append_decision
from lineage.audit.log import append, log_file
from lineage.audit.moves import Move
from lineage.layout import Layout
from lineage.retention.keep import order_by_standing

LAB = """
from pathlib import Path

from tasks.context import Result

def number(context, *, value: int = 1):
    (context.output("result") / "own.bin").write_bytes(bytes([value]) * 5000)

def exam(context, *, value: int = 1, gate: str = ""):
    (context.output("result") / "n.txt").write_text(str(value))
    outcome = {"metric": "accuracy", "passed": False, "on_fail": gate, "text": "accuracy 0.1"}
    return Result({"accuracy": 0.1}, {"gates": [outcome] if gate else []})

def fails(context, *, value: int = 1, until: str = "go"):
    (context.checkpoints / "c.bin").write_bytes(b"c" * 9000)
    if not Path(until).exists():
        raise RuntimeError("not yet")
    (context.output("result") / "n.txt").write_text("1")
"""
RECIPE = """
name: numbers
vars: {value: 1}
stages:
  data: {kind: python, function: {use: "LAB:number", value: "${vars.value}"}}
  model: {kind: python, function: {use: "LAB:number", value: "${vars.value}"}, inputs: {x: data}}
  exam: {kind: python, function: {use: "LAB:exam", value: "${vars.value}"}, inputs: {x: model}}
"""
FAILS = """
name: unfinished
stages:
  data: {kind: python, function: {use: "LAB:number", value: 50}}
  model: {kind: python, function: {use: "LAB:fails", until: "GO"}, inputs: {x: data}}
"""
WAITS = """
name: asks
stages:
  exam: {kind: python, function: {use: "LAB:exam", value: 60, gate: GATE}}
  after: {kind: python, function: {use: "LAB:number", value: 61}, inputs: {x: exam}}
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    lab = f"retainlab_{os.getpid()}_{tmp_path.name[-8:]}".replace("-", "_")
    (tmp_path / f"{lab}.py").write_text(LAB)
    for name, text in (("numbers", RECIPE), ("unfinished", FAILS), ("stop", WAITS), ("approve", WAITS)):
        text = text.replace("LAB", lab).replace("GO", str(tmp_path / "go")).replace("GATE", name)
        (tmp_path / f"{name}.yaml").write_text(text)
    return Layout(tmp_path)


def run(layout, name, recipe="numbers", value=None, code=0):
    overrides = [f"vars.value={value}"] if value is not None else []
    plan = plan_recipe(layout.root / f"{recipe}.yaml", layout, overrides=overrides)
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False, run=name)
    assert outcome.exit_code == code, outcome.states
    return {step.name: step.key for step in plan.steps}


def gc(*words):
    done = CliRunner().invoke(app, ["gc", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def refused(*words):
    """The error of a `gc` that must remove nothing."""
    done = CliRunner().invoke(app, ["gc", "--last", "0", *words])
    assert done.exit_code == 1
    return str(done.exception)


def here(layout):
    return {manifest.key for manifest in Store(layout).manifests()}


def moved(layout, number, version, keys, action="promote"):
    """An entry as a promotion or a rollback writes it."""
    evidence = {"key": keys["exam"], "gate": "exam"} if action == "promote" else {"why": "worse"}
    append(
        layout,
        action,
        model="m",
        number=number,
        version=version,
        before=None,
        key=keys["model"],
        digest=keys["model"],
        output="result",
        evidence=evidence,
        after=None,
    )


@pytest.fixture
def rolled_back(checkout):
    """Versions 1, 2 and 3 were promoted, then 3 was taken back; MLflow has no alias of all that."""
    keys = {value: run(checkout, f"run-{value}", value=value) for value in (1, 2, 3, 4)}
    for version in (1, 2, 3):
        moved(checkout, version, version, keys[version])
    moved(checkout, 4, 2, keys[2], "rollback")
    assert not (checkout.state / "mlflow.db").exists()
    return checkout, keys


def test_after_a_rollback_the_champion_its_proof_and_all_that_rollback_may_go_to_stay(rolled_back):
    layout, keys = rolled_back
    output = gc("--last", "0", "--yes")
    assert here(layout) == {key for version in (1, 2, 3) for key in keys[version].values()}
    why = {kept["key"]: kept["why"] for kept in output["kept"]}
    assert why[keys[2]["model"]] == "champion of m"
    assert why[keys[2]["exam"]] == "proof of champion of m"
    assert why[keys[1]["model"]] == "version 1 of m, for rollback"
    assert why[keys[1]["exam"]] == "proof of version 1 of m, for rollback"


@pytest.mark.parametrize(("number", "stay"), [(0, (2,)), (1, (2, 1)), (2, (2, 1, 3))])
def test_with_a_number_what_rollback_goes_to_next_stays_before_what_was_rejected(rolled_back, number, stay):
    layout, keys = rolled_back
    gc("--last", "0", "--champions", str(number), "--yes")
    assert here(layout) == {key for version in stay for key in keys[version].values()}
    assert gc("--last", "0")["artifacts"] == []  # and what went so is not missed


def test_the_order_of_going_back_is_that_of_rollback():
    def move(number, version, action="promote"):
        key = f"{version}" * 64
        return Move(number, action, version, None, key, key, "model", "", "", {}, None, {})

    def order(*moves):
        return [move.version for move in order_by_standing(list(moves))]

    assert order() == []
    assert order(move(1, 1)) == [1]
    assert order(move(1, 1), move(2, 2), move(3, 3)) == [3, 2, 1]
    assert order(move(1, 1), move(2, 2), move(3, 3), move(4, 2, "rollback")) == [2, 1, 3]
    assert order(move(1, 1), move(2, 2), move(3, 3), move(4, 1, "rollback")) == [1, 3, 2]
    assert order(move(1, 1), move(2, 2), move(3, 1, "rollback"), move(4, 3)) == [3, 1, 2]


def test_a_run_that_found_everything_there_does_not_count_among_the_latest(checkout):
    keys = {value: run(checkout, f"run-{value}", value=value) for value in (1, 2)}
    for again in ("run-3", "run-4", "run-5"):
        run(checkout, again, value=1)
    assert gc("--last", "2")["artifacts"] == []
    gc("--last", "1", "--yes")
    assert here(checkout) == set(keys[2].values())


def test_a_run_that_failed_keeps_what_it_has_until_it_was_resumed_or_given_up(checkout):
    keys = run(checkout, "run-1", "unfinished", code=1)
    for number in (2, 3):
        run(checkout, f"run-{number}", value=number)
    (checkout.work("f" * 64) / "checkpoints").mkdir(parents=True)
    output = gc("--last", "0", "--yes")
    assert here(checkout) == {keys["data"]}
    assert output["works"] == ["f" * 64]
    assert [kept["why"] for kept in output["kept"]] == ["run run-1, which can be resumed"]
    assert (checkout.work(keys["model"]) / "checkpoints/c.bin").stat().st_size == 9000
    unknown = CliRunner().invoke(app, ["gc", "--give-up", "run-9"])
    assert "no run `run-9`" in str(unknown.exception)
    assert gc("--last", "0", "--give-up", "run-2")["artifacts"] == []
    assert [gone["key"] for gone in gc("--last", "0", "--give-up", "all")["artifacts"]] == [keys["data"]]
    (checkout.root / "go").touch()
    assert run(checkout, "run-1", "unfinished") == keys  # it goes on, with the same artifacts
    gc("--last", "0", "--yes")
    assert here(checkout) == set()


def test_a_run_that_was_given_up_leaves_its_work_folder_too(checkout):
    keys = run(checkout, "run-1", "unfinished", code=1)
    assert gc("--last", "0", "--give-up", "run-1", "--yes")["works"] == [keys["model"]]
    assert here(checkout) == set()


def test_a_killed_run_keeps_what_it_has(checkout):
    keys = run(checkout, "run-1", value=1)
    append(checkout, "run started", run="run-1", steps=3, hits=3)  # went on, and was killed: no end follows
    gc("--last", "0", "--yes")
    assert here(checkout) == set(keys.values())


def test_a_run_that_waits_for_a_person_keeps_what_it_has_one_whose_gate_failed_does_not(checkout):
    waits, stopped = run(checkout, "run-1", "approve", code=2), run(checkout, "run-2", "stop", code=2)
    gc("--last", "0", "--yes")
    assert here(checkout) == {waits["exam"]} != {stopped["exam"]}
    append_decision(checkout, waits["exam"], 0, "approve", name="ada", reason="fine", step="exam")
    assert gc("--last", "0")["artifacts"] == []  # approved, and not resumed yet
    append_decision(checkout, waits["exam"], 0, "reject", name="ada", reason="no", step="exam")
    gc("--last", "0", "--yes")
    assert here(checkout) == set()


def test_a_run_whose_plan_an_insider_took_keeps_what_the_log_says_it_made(checkout):
    keys = run(checkout, "run-1", value=1)
    for content in (b"", b"{}", b"[" * 50_000, None):
        plan = checkout.run("run-1") / "plan.json"
        shutil.rmtree(plan.parent) if content is None else plan.write_bytes(content)
        assert {kept["key"] for kept in gc("--last", "1")["kept"]} == set(keys.values())
    (checkout.state / "runs/zzz").mkdir(parents=True)
    (checkout.state / "runs/zzz/plan.json").write_text("{}")  # a run that never was pushes none out
    assert gc("--last", "1")["artifacts"] == []


def test_a_run_under_way_keeps_what_its_plan_names(checkout):
    keys = run(checkout, "run-1", value=1)
    with mark_active(checkout, "run-1"):
        assert {kept["key"] for kept in gc("--last", "0")["kept"]} == set(keys.values())


LOGS = {
    "altered": lambda lines: [lines[0].replace(b'"who":"', b'"who":"x'), *lines[1:]],
    "a line taken out": lambda lines: lines[:2] + lines[3:],
    "cut off": lambda lines: lines[:-2],
    "emptied": lambda lines: [],
    "garbage": lambda lines: [*lines, b"\xff garbage\n"],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
}


def test_a_log_that_does_not_hold_removes_nothing(rolled_back):
    layout, _ = rolled_back
    before, log = here(layout), log_file(layout)
    lines = log.read_bytes().splitlines(keepends=True)
    for how, change in LOGS.items():
        log.write_bytes(b"".join(change(lines)))
        for words in ([], ["--yes"]):
            assert "audit log does not verify" in refused(*words), how
    log.unlink()
    (layout.state / "audit.head.json").unlink()
    assert "audit log does not verify" in refused("--yes")
    assert here(layout) == before


@pytest.mark.parametrize("sealed", [False, True])
def test_a_manifest_of_the_champion_that_hides_its_inputs_removes_nothing(rolled_back, sealed):
    layout, keys = rolled_back
    folder = next(layout.state.glob(f"artifacts/*-{keys[2]['model'][:16]}"))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"inputs": []}))
    if sealed:
        write_seal(folder)
    assert "so what it was made from is unknown" in refused("--yes")
    assert len(list((layout.state / "artifacts").iterdir())) == 12


@pytest.mark.parametrize("step", ["model", "exam"])
def test_a_champion_or_proof_that_is_gone_removes_nothing_else(rolled_back, step):
    layout, keys = rolled_back
    shutil.rmtree(next(layout.state.glob(f"artifacts/*-{keys[2][step][:16]}")))
    before = here(layout)
    assert "is missing or damaged" in refused("--yes")
    assert here(layout) == before


def test_pins_or_records_of_dvc_that_cannot_be_read_remove_nothing(rolled_back):
    layout, _ = rolled_back
    before = here(layout)
    for content in ("", "{", "[1]", '{"k": 1}', '{"k": {}}', "17"):
        (layout.state / "keepsakes.json").write_text(content)
        assert "not a list of pins" in refused("--yes")
    (layout.state / "keepsakes.json").unlink()
    (layout.root / "data.dvc").write_text("outs: [")
    assert "nothing is removed" in refused("--yes")
    assert here(layout) == before
