"""`verify` fails on whatever an insider takes away or changes in the state folder, and goes on after each."""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.runs.lookup import rebuild_report
from lineage.artifacts.store import Store
from lineage.audit.approvals import append_decision, decisions_file
from lineage.audit.log import append, log_file
from lineage.catalogue.index import FILE, query_index
from lineage.catalogue.row_index import read_new_tables
from lineage.layout import Layout
from lineage.registry.champions import move_champion
from lineage.verification.verify import verify

RECIPE = """
name: small
stages:
  words: {kind: python, function: "LAB:words", produces: {data: prompts}}
  model: {kind: python, function: "LAB:model", inputs: {x: words}, produces: {model: policy}}
  exam: {kind: python, function: "LAB:exam", inputs: {x: model}}
"""
LAB = """
from learning.data.rows import write_rows

def words(context):
    ask = [{"role": "user", "content": "?"}]
    rows = [{"id": name, "prompt": ask, "answer": "", "family": "f", "metadata": "{}"} for name in "abc"]
    write_rows(context.output("data"), "prompts", rows)

def model(context):
    (context.output("model") / "model.safetensors").write_bytes(b"weights")
    (context.output("model") / "config.json").write_text("{}")

def exam(context):
    (context.output("result") / "n.txt").write_text("1")
    return {"accuracy": 0.9}
"""
GARBAGE = [
    b"\xff\xfe garbage",
    b"[1, 2]\n",
    b'{"a": NaN}\n',
    b"[" * 100_000 + b"\n",
    b'"text"\n',
    b"17\n",
    b"null\n",
    b"",
]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run with a report, a champion with its proof, and a decision about a gate."""
    root = tmp_path_factory.mktemp("verified")
    lab = f"verifylab_{os.getpid()}"
    (root / f"{lab}.py").write_text(LAB)
    (root / "small.yaml").write_text(RECIPE.replace("LAB", lab))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTTRAIN_ROOT", str(root))
        patch.chdir(root)
        done = CliRunner().invoke(app, ["run", "small.yaml", "--executor", "inprocess"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    layout = Layout(root)
    made = {manifest.step: manifest for manifest in Store(layout).manifests()}
    append_decision(layout, made["exam"].key, 0, "approve", name="ada", reason="good enough", step="exam")
    move_champion(layout, "adder", made["model"].key, evidence={"key": made["exam"].key}, expected=None)
    (layout.state / FILE).unlink()
    return root, made


@pytest.fixture
def finished(template, tmp_path, monkeypatch):
    """A copy of it: nothing to complain of."""
    root, made = template
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path)
    query_index(layout, read_new_tables)
    assert verify(layout).problems == ()
    return layout, made


def run_of(layout):
    (run,) = (layout.state / "runs").iterdir()
    return run


def problems(layout):
    """What `lineage --verify` says; its exit code is checked."""
    done = CliRunner().invoke(app, ["lineage", "--verify", "--json"], catch_exceptions=False)
    record = json.loads(done.output)["problems"]
    assert done.exit_code == (1 if record else 0)
    return record


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("name", ["cost.json", "report.html", "events.jsonl", "plan.json"])
def test_a_record_of_a_run_that_was_edited_or_taken_away_is_a_problem(finished, name):
    layout, _ = finished
    file = run_of(layout) / name
    content = file.read_bytes()
    file.write_bytes(content.replace(b"0", b"1", 1))
    (problem,) = {line.partition("; ")[0].partition(" that entry")[0] for line in problems(layout)}
    assert problem.startswith(f"{file}: is not the ")
    file.unlink()
    assert all(line.startswith(f"{file}: missing; entry ") for line in problems(layout))
    assert problems(layout)
    file.write_bytes(content)
    assert problems(layout) == []


def test_an_event_after_the_end_of_a_run_is_held_against_the_log_too(finished):
    layout, _ = finished
    events = run_of(layout) / "events.jsonl"
    *lines, last = events.read_bytes().splitlines(keepends=True)
    assert json.loads(last)["state"] == "ended"
    events.write_bytes(b"".join(lines) + last.replace(b'"exit_code": 0', b'"exit_code": 2'))
    assert any(line.startswith(f"{events}: is not the record of events") for line in problems(layout))


def test_a_run_whose_folder_is_gone_is_a_problem(finished):
    layout, _ = finished
    run = run_of(layout)
    shutil.rmtree(run)
    (problem,) = problems(layout)
    assert problem.startswith(f"{run}: missing, though entry ")


def test_a_decision_that_is_gone_is_a_problem_until_the_log_has_given_it_back(finished):
    layout, made = finished
    path = decisions_file(layout, made["exam"].key)
    content = path.read_bytes()
    shutil.rmtree(path.parent)
    (problem,) = problems(layout)
    assert "the decision of entry" in problem
    record = json.loads(CliRunner().invoke(app, ["lineage", "--verify", "--rebuild", "--json"]).output)
    assert record["rebuilt"] == [f"{path}: written again from the audit log"]
    assert problems(layout) == []
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [json.loads(content)]


def test_the_artifact_of_a_champion_and_its_proof_are_missed(finished):
    layout, made = finished
    shutil.rmtree(Store(layout).folder(made["model"]))
    assert any("the champion of adder, version 1 (" in line and "is missing" in line for line in problems(layout))
    shutil.rmtree(Store(layout).folder(made["exam"]))
    assert any("the evaluation that proved the champion of adder" in line for line in problems(layout))
    append(layout, "gc", artifacts=[made["model"].key, made["exam"].key])
    assert len([line for line in problems(layout) if "adder" in line]) == 2


def test_a_report_made_again_is_recorded_and_no_problem(finished):
    layout, _ = finished
    (run_of(layout) / "report.html").write_text("<p>all went well</p>")
    assert len(problems(layout)) == 1
    assert "posttrain report" in problems(layout)[0]
    rebuild_report(None, layout)
    assert problems(layout) == []


def test_a_run_that_found_everything_there_verifies_and_so_does_one_that_is_resumed(finished):
    layout, _ = finished
    for words in (["run", "small.yaml"], ["resume"]):
        assert CliRunner().invoke(app, [*words, "--executor", "inprocess"], catch_exceptions=False).exit_code == 0
        assert problems(layout) == []


EVERY = [
    "audit.jsonl",
    "audit.head.json",
    "runs/RUN/events.jsonl",
    "runs/RUN/plan.json",
    "runs/RUN/cost.json",
    "runs/RUN/report.html",
    "approvals/EXAM.jsonl",
    "artifacts/MODEL/manifest.json",
    "artifacts/MODEL/seal.json",
    "artifacts/MODEL/signature.json",
    "artifacts/WORDS/outputs/data/rows.parquet",
    "keys/signing.pub",
    "keys/signing.pem",
    "keys/trusted/eve.pub",
    "index.db",
    "mlflow.db",
]


def place(layout, made, name):
    words = {"RUN": run_of(layout).name, "EXAM": made["exam"].key}
    words |= {step.upper(): Store(layout).folder(made[step]).name for step in ("model", "words")}
    for word, real in words.items():
        name = name.replace(word, real)
    path = layout.state / name
    path.parent.mkdir(exist_ok=True)
    return path


def other_problem(layout, made):
    """Damage elsewhere, which must still be found."""
    file = Store(layout).folder(made["exam"]) / "outputs/result/n.txt"
    file.write_text("2")
    return str(file)


@pytest.mark.parametrize("name", EVERY)
def test_garbage_in_any_file_is_named_and_hides_nothing_else(finished, name):
    layout, made = finished
    path, other = place(layout, made, name), other_problem(layout, made)
    before = path.read_bytes() if path.exists() else None
    for garbage in GARBAGE[:-1] if name == "index.db" else GARBAGE:  # an empty one is one that says nothing yet
        path.write_bytes(garbage)
        verification = verify(layout)
        assert any(line.startswith(other) for line in verification.problems), garbage
        assert any(path.name in line or "audit" in line for line in verification.problems), garbage
        assert all("\n" not in line for line in verification.problems)
    if before is not None and name != "index.db":
        path.write_bytes(before)
        assert [line for line in verify(layout).problems if not line.startswith(other)] == []


@pytest.mark.parametrize("name", EVERY[:-1])  # a process that asked MLflow holds its database open
@pytest.mark.parametrize("what", ["folder", "pipe", "loop"])
def test_a_folder_a_pipe_or_a_circle_of_links_in_place_of_a_file_is_named(finished, name, what):
    layout, made = finished
    path, other = place(layout, made, name), other_problem(layout, made)
    path.unlink(missing_ok=True)
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "loop": lambda: path.symlink_to(path)}[what]()
    problems_found = verify(layout).problems
    assert any(line.startswith(other) for line in problems_found)
    assert any(path.name in line for line in problems_found)
    done = CliRunner().invoke(app, ["lineage", "--verify"])
    assert done.exit_code == 1
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


@pytest.mark.parametrize("folder", ["runs", "approvals", "artifacts", "keys", "artifacts/MODEL", "runs/RUN"])
def test_a_file_in_place_of_a_folder_is_a_problem(finished, folder):
    layout, made = finished
    path = place(layout, made, folder)
    shutil.rmtree(path)
    path.write_bytes(b"no folder")
    verification = verify(layout)
    assert [
        line for line in (*verification.problems, *verification.notes) if path.name in line or "not trusted" in line
    ]
    assert verification.problems or folder == "artifacts/words"


def test_entries_of_the_log_with_values_of_every_wrong_type_are_problems_and_no_more(finished):
    layout, made = finished
    other, path = other_problem(layout, made), log_file(layout)
    lines = path.read_bytes().splitlines()
    for name in ("action", "at", "facts", "number", "previous", "who", "hash", "signature"):
        for value in ([], {}, None, True, -1, 1.5, "x" * 70_000, {"artifacts": 7, "runs": []}):
            changed = [json.dumps({**json.loads(line), name: value}).encode() for line in lines]
            path.write_bytes(b"\n".join(changed) + b"\n")
            verification = verify(layout)
            assert any(line.startswith(str(path)) for line in verification.problems), (name, value)
            assert any(line.startswith(other) for line in verification.problems), (name, value)


INDEX = {
    "a record": "update artifacts set record = replace(record, 'words', 'other')",
    "a name": "update artifacts set step = 'other' where step = 'words'",
    "an edge less": "delete from inputs where made_by is not null",
    "an edge more": "insert into inputs select artifact, 9, 'x', made_by, null, digest from inputs limit 1",
    "a digest": "update digests set start = substr('0' || start, 1, 16)",
    "a table": "update tables set path = 'outputs/data/other.parquet'",
    "rows": "update row_ids set hashes = x'00112233445566778899aabbccddeeff'",
    "a drop": "insert into dropped_rows select 'a', sha256, 'length', '' from tables",
    "an artifact more": "insert into artifacts(name, stamp, key) values('made-up', '', 'ab')",
    "garbage": "update artifacts set record = '{'",
    "a trigger": "create trigger t after insert on inputs begin delete from inputs; end",
}


@pytest.mark.parametrize("what", INDEX)
def test_an_index_that_says_something_else_than_the_manifests_is_a_problem_until_it_is_made_again(finished, what):
    layout, _ = finished
    with sqlite3.connect(layout.state / FILE) as connection:
        connection.execute(INDEX[what])
    connection.close()
    if what == "an artifact more":  # an answer would leave it out: no such folder
        assert problems(layout) == []
        return
    problems_before = problems(layout)
    assert problems_before
    assert all(line.startswith(f"{layout.state / FILE}: ") and "--rebuild" in line for line in problems_before)
    done = CliRunner().invoke(app, ["lineage", "--verify", "--rebuild", "--json"], catch_exceptions=False)
    assert (done.exit_code, len(json.loads(done.output)["rebuilt"])) == (1, 1)
    assert problems(layout) == []


@pytest.mark.parametrize("what", ["folder", "pipe"])
def test_a_folder_or_a_pipe_in_place_of_mlflows_database_is_a_problem_at_once(tmp_path, what):
    path = Layout(tmp_path).make_state() / "mlflow.db"
    path.mkdir() if what == "folder" else os.mkfifo(path)
    assert verify(Layout(tmp_path)).problems == (f"MLflow at {path} cannot be used: it is not a regular file",)


def test_a_target_is_found_by_manifests_when_the_index_lies(finished):
    layout, made = finished
    other = other_problem(layout, made)
    with sqlite3.connect(layout.state / FILE) as connection:
        connection.execute("delete from inputs")
        connection.execute("update artifacts set record = '{'")
    connection.close()
    verification = verify(layout, "exam")
    assert verification.artifacts == 3
    assert any(line.startswith(other) for line in verification.problems)


def test_an_unreadable_file_is_named(finished, monkeypatch):
    layout, made = finished
    other, events = other_problem(layout, made), run_of(layout) / "events.jsonl"
    open_file = os.open

    def refused(path, *words, **more):
        if str(path) == str(events):
            raise PermissionError(13, "Permission denied")
        return open_file(path, *words, **more)

    monkeypatch.setattr("lineage.state_files.os.open", refused)
    problems_found = verify(layout).problems
    assert any(line.startswith(f"{events}: Permission denied") for line in problems_found)
    assert any(line.startswith(other) for line in problems_found)


def test_a_log_that_was_cut_off_stays_found_out_however_often_it_is_checked(finished):
    layout, _ = finished
    for number in range(3):
        append(layout, "verified", number=number)
    shutil.rmtree(run_of(layout))
    lines = log_file(layout).read_bytes().splitlines(keepends=True)
    log_file(layout).write_bytes(b"".join(lines[:-2]))
    for _ in range(4):
        assert any(" saw entry " in line or "is another than" in line for line in problems(layout))


def test_decisions_in_another_order_are_a_problem(finished):
    layout, made = finished
    key = made["exam"].key
    append_decision(layout, key, 0, "reject", name="ada", reason="a second look", step="exam")
    assert problems(layout) == []
    path: Path = decisions_file(layout, key)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(second + first)
    assert problems(layout) == [f"{path}: its decisions are not in the order of the audit log"]


def test_a_private_key_that_others_can_read_is_a_problem(finished):
    layout, _ = finished
    path = layout.state / "keys/signing.pem"
    path.chmod(0o644)
    assert problems(layout) == [f"{path}: others than its owner can read it; close it: chmod go= {path}"]
