"""What the audit log says of runs, artifacts and decisions is held against what lies there."""

import errno
import hashlib
import json
import shutil

import pytest

from lineage.audit.approvals import append_decision, decisions_file
from lineage.audit.log import append, log_file
from lineage.verification.audit_check import check_audit

KEY = "ab" * 32


@pytest.fixture
def claimed(small_run):
    """A run with its plan and events, an artifact, and a decision about a gate."""
    layout = small_run.layout
    folder = layout.run("run-1")
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    (folder / "events.jsonl").write_text('{"type": "run", "state": "started"}\n')
    seen = {name: (folder / name).read_bytes() for name in ("plan.json", "events.jsonl")}
    append(layout, "run started", run="run-1", plan=hashlib.sha256(seen["plan.json"]).hexdigest())
    made = small_run.made["tuned"]
    digests = {name: output.digest for name, output in made.outputs.items()}
    append(layout, "artifact published", key=made.key, kind=made.kind, digests=digests)
    append_decision(layout, KEY, 0, "approve", name="ada", reason="small change", step="exam")
    events = {"bytes": len(seen["events.jsonl"]), "sha256": hashlib.sha256(seen["events.jsonl"]).hexdigest()}
    append(layout, "run ended", run="run-1", events=events)
    with (folder / "events.jsonl").open("a") as stream:
        stream.write('{"type": "run", "state": "ended", "exit_code": 0}\n')
    assert (check_audit(layout).problems, check_audit(layout).notes) == ([], [])
    return small_run


def test_another_plan_and_other_events_are_named(claimed):
    folder = claimed.layout.run("run-1")
    (folder / "plan.json").write_text('{"steps": []}')
    assert check_audit(claimed.layout).problems == [
        f"{folder / 'plan.json'}: is not the plan that entry 1 of the audit log saw"
    ]
    (folder / "plan.json").write_text("{}")
    events = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text(events.replace('"started"', '"stopped"'))
    assert check_audit(claimed.layout).problems == [
        f"{folder / 'events.jsonl'}: is not the record of events that entry 4 of the audit log saw"
    ]


def test_forged_changed_and_deleted_decisions_are_named(claimed):
    path = decisions_file(claimed.layout, KEY)
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"name": "eve"}) + "\n")
    assert check_audit(claimed.layout).problems == [f"{path}: approve by eve is not what the audit log says"]
    forged = {"gate": 1, "decision": "approve", "name": "eve", "reason": "why not"}
    path.write_text(json.dumps(record) + "\n" + json.dumps(forged) + "\n")
    assert check_audit(claimed.layout).problems == [f"{path}: approve by eve is not what the audit log says"]
    path.unlink()
    check = check_audit(claimed.layout)
    gone = f"{path}: the decision of entry 3 (approve) is not there; write it again from the log: "
    assert (check.problems, check.notes) == ([f"{gone}posttrain lineage --verify --rebuild"], [])


def test_a_log_cut_off_before_a_decision_is_found_out_by_it(claimed):
    lines = log_file(claimed.layout).read_bytes().splitlines(keepends=True)
    log_file(claimed.layout).write_bytes(b"".join(lines[:2]))
    (claimed.layout.state / "audit.head.json").unlink()
    path = decisions_file(claimed.layout, KEY)
    assert (
        f"{log_file(claimed.layout)}: ends at entry 2, but {path} saw entry 3" in check_audit(claimed.layout).problems
    )


def test_a_missing_artifact_is_reported_unless_gc_removed_it(claimed):
    made = claimed.made["tuned"]
    shutil.rmtree(claimed.store.folder(made))
    check = check_audit(claimed.layout)
    gone = "published by entry 2 of the audit log; gone, and no entry removed it"
    expected = f"{claimed.store.folder(made)}: {gone}"
    assert (check.problems, check.notes) == ([], [expected])
    append(claimed.layout, "gc", artifacts=[made.key])
    assert check_audit(claimed.layout).notes == []


def test_a_read_only_store_can_be_checked_and_is_reported(claimed, capsys, monkeypatch):
    from rich.console import Console

    from flows.history.audit import show_verification

    def read_only(*words, **facts):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("flows.history.audit.append", read_only)
    assert show_verification(None, claimed.layout, Console(), True) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["notes"] == [f"{claimed.layout.state}: the verification could not be recorded: Read-only file system"]
    monkeypatch.undo()
    assert show_verification(None, claimed.layout, Console(), True) == 0
    last = json.loads(log_file(claimed.layout).read_bytes().splitlines()[-1])
    assert (last["action"], last["facts"]) == ("verified", {"artifacts": 5, "problems": 0, "target": None})
