"""Gates that branch and gates that ask people, through real evaluations of a model that knows nothing."""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flows.cli import app
from flows.execution.approval import ApprovalQueue, PersonalDecision, decide_gates, record_answer
from flows.execution.execute import Execution
from flows.execution.gates import judge_gates
from flows.execution.run_log import RunLog, read_events, read_plan
from flows.planning.explain import explain_plan
from flows.planning.gate_power import describe_condition
from flows.planning.recipe_plan import plan_recipe
from flows.prefect_runs.evidence_page import make_evidence_page
from flows.runs.launch import run_plan
from flows.runs.lookup import list_run_records, list_step_records, make_status_table
from flows.steps.in_process import InProcess
from lineage.audit import log as audit_log
from lineage.audit.approvals import read_decisions
from lineage.layout import Layout
from lineage.reports.report import collect_gate_rows
from lineage.tracing.ancestry import trace
from schemas.errors import PlanError
from tests.small_steps import write_gated_recipe

LAB = """
def note(context, *, text: str = ""):
    read = sorted({(p / "n.txt").read_text() for p in context.inputs.values() if (p / "n.txt").is_file()})
    (context.output("result") / "n.txt").write_text(text or ",".join(read))
"""
FURTHER_STAGES = """\
  repair: {kind: python, function: {use: "lab:note", text: repaired}, inputs: {model: base}}
  polish: {kind: python, function: {use: "lab:note", text: polished}, inputs: {model: base}, after: [check]}
  more: {kind: python, function: "lab:note", inputs: {x: polish}}
  final: {kind: python, function: "lab:note", inputs: {x: repair | polish}}
  aside: {kind: python, function: {use: "lab:note", text: aside}, inputs: {model: base}}
"""
ACCOUNT = audit_log.read_account()
BRANCH = "on_fail: branch, branch: [repair]"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    name = f"lab_{os.getpid()}_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(LAB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("POSTTRAIN_USER", "ada")
    layout = Layout(tmp_path / "root")
    layout.root.mkdir()

    def plan(gate):
        (tmp_path / "recipe.yaml").write_text(
            write_gated_recipe(f"metric: accuracy, {gate}", FURTHER_STAGES.replace("lab:", f"{name}:"))
        )
        return plan_recipe(tmp_path / "recipe.yaml", layout)

    plan.layout = layout
    return plan


def go(plan, layout):
    return run_plan(plan, layout, executor="inprocess", prefect=False)


def states(outcome):
    return {name: s.state for name, s in outcome.states.items()}


def text_of(outcome, step, layout):
    manifest = outcome.states[step].manifest
    return (layout.artifact("python", manifest.key) / "outputs/result/n.txt").read_text()


def test_a_gate_branches_and_what_follows_takes_whichever_ran(lab):
    failed = go(lab(f"min: 0.9, {BRANCH}"), lab.layout)
    assert states(failed) == {
        "base": "done",
        "check": "done",
        "repair": "done",
        "polish": "skipped",
        "more": "skipped",
        "final": "done",
        "aside": "done",
    }
    assert failed.exit_code == 0
    assert text_of(failed, "final", lab.layout) == "repaired"
    assert failed.states["polish"].reason == "a gate of check failed: its branch runs instead"
    passed = go(lab(f"min: 0.0, {BRANCH}"), lab.layout)
    assert (passed.states["repair"].state, passed.states["polish"].state) == ("skipped", "done")
    assert passed.states["repair"].reason == "only if a gate of check fails"
    assert text_of(passed, "final", lab.layout) == "polished"
    again = go(lab(f"min: 0.9, {BRANCH}"), lab.layout)
    assert (again.states["final"].state, text_of(again, "final", lab.layout)) == ("cached", "repaired")
    plan = lab(f"min: 0.9, {BRANCH}")
    assert describe_condition(plan.step("repair"), plan) == "only if a gate of check fails"
    assert describe_condition(plan.step("polish"), plan) == "unless a gate of check fails"
    assert describe_condition(plan.step("aside"), plan) == ""
    shown = Console(record=True, width=200)
    shown.print(make_status_table(failed.run, lab.layout))
    assert "gate branched: accuracy" in shown.export_text()


def test_what_happens_after_a_gate_is_in_no_key_but_that_of_what_it_chooses(lab):
    keys = {}
    for policy in ("on_fail: stop", "on_fail: warn", "on_fail: approve, approve_within: 5", BRANCH):
        keys[policy] = {s.name: s.key for s in lab(f"min: 0.9, {policy}").steps}
    same = {name: {k[name] for k in keys.values()} for name in keys[BRANCH]}
    assert [name for name, keys_of_step in same.items() if len(keys_of_step) > 1] == ["final"]
    assert keys["on_fail: stop"]["final"] == keys["on_fail: warn"]["final"]


def test_a_gate_waits_for_a_person_and_never_asks_the_same_again(lab):
    plan = lab("min: 0.9, on_fail: approve")
    outcome = go(plan, lab.layout)
    assert states(outcome)["check"] == "done"
    assert (states(outcome)["polish"], outcome.states["polish"].reason) == (
        "blocked",
        "a gate of check waits for approval: accuracy",
    )
    assert (states(outcome)["aside"], outcome.exit_code) == ("done", 2)
    called = CliRunner().invoke(app, ["approve", outcome.run, "check", "--approve", "--reason", "only a rehearsal"])
    assert called.exit_code == 0, called.output
    assert "approved by ada (claimed by " in called.stdout
    records = {record["step"]: record for record in list_step_records(outcome.run, lab.layout)}
    assert (records["check"]["state"], records["check"]["gates"]) == ("done", "gate approved: accuracy")
    assert records["polish"]["state"] == "blocked"
    assert records["polish"]["reason"] == f"a gate of check was approved since; posttrain resume {outcome.run}"
    (listed,) = list_run_records(lab.layout)
    assert listed.outcome == "a gate was approved since; continue with: posttrain resume"
    console = Console(record=True, width=200)
    resumed = run_plan(read_plan(lab.layout, outcome.run), lab.layout, executor="inprocess", run=outcome.run)
    assert (resumed.exit_code, resumed.states["polish"].state) == (0, "done")
    again = go(plan, lab.layout)
    assert (again.exit_code, set(states(again).values())) == (0, {"cached"})
    (kept,) = read_decisions(lab.layout, plan.step("check").key)
    assert (kept["decision"], kept["name"], kept["reason"]) == (
        "approve",
        f"ada (claimed by {ACCOUNT})",
        "only a rehearsal",
    )
    assert "wanted >= 0.9" in kept["text"]
    (entry,) = [e for e in audit_log.read_entries(lab.layout) if e["action"] == "approve"]
    assert (entry["who"], entry["facts"]["key"]) == (ACCOUNT, plan.step("check").key)
    assert kept["audit"] == audit_log.anchor_of(entry)
    with pytest.raises(PlanError, match="no gate of check can be approved"):
        decide_gates(lab.layout, outcome.run, "check", "approve", "twice", None, console)
    (traced,) = trace(lab.layout, "check").as_json()["up"][:1]
    assert traced["decisions"] == [kept]
    manifests = {name: s.manifest for name, s in again.states.items() if s.manifest}
    (shown,) = collect_gate_rows(plan, manifests, lab.layout)
    assert (shown["outcome"], shown["good"]) == ("failed, approved", True)
    assert shown["texts"][1].startswith(f"approved by ada (claimed by {ACCOUNT}) at 20")
    (listed,) = [record for record in list_run_records(lab.layout) if record.run == outcome.run]
    assert listed.outcome == "ok"
    # Second thoughts count, and both decisions stay.
    decide_gates(lab.layout, outcome.run, "check", "reject", "seen the samples", "bob", console)
    rejected = go(plan, lab.layout)
    assert (rejected.exit_code, rejected.states["polish"].state) == (2, "blocked")
    assert f"rejected by bob (claimed by {ACCOUNT})" in rejected.states["check"].gates[0].text
    who = f"accuracy (by bob (claimed by {ACCOUNT}) at 20"
    assert rejected.states["polish"].reason.startswith(f"the gate of check was rejected: {who}")
    assert rejected.states["check"].gate_text.startswith(f"gate rejected: {who}")
    assert rejected.states["check"].gate_text.endswith(": seen the samples)")
    outcomes = {record.run: record.outcome for record in list_run_records(lab.layout)}
    assert (outcomes[outcome.run], outcomes[rejected.run]) == ("ok", "a gate was rejected")
    assert [d["decision"] for d in read_decisions(lab.layout, plan.step("check").key)] == ["approve", "reject"]
    assert explain_plan(plan, lab.layout)["check"][0] == "HIT"


def test_status_shows_a_rejection_before_anything_runs_again(lab):
    outcome = go(lab("min: 0.9, on_fail: approve"), lab.layout)

    def show_status():
        shown = Console(record=True, width=300)
        shown.print(make_status_table(outcome.run, lab.layout))
        return shown.export_text()

    assert "gate waits for approval: accuracy" in show_status()
    assert CliRunner().invoke(app, ["approve", outcome.run, "check", "--reject", "--reason", "no"]).exit_code == 0
    status = show_status()
    assert "waits for approval" not in status
    assert "gate rejected: accuracy (by ada (claimed by " in status
    assert "the gate of check was rejected: accuracy (by ada" in status
    (listed,) = list_run_records(lab.layout)
    assert listed.outcome == "a gate was rejected"


def test_a_claimed_name_is_no_approver(lab):
    """A name that was given before the gate had approvers does not count as the account of that name."""
    plan, console = lab("min: 0.9, on_fail: approve"), Console()
    outcome = go(plan, lab.layout)
    decide_gates(lab.layout, outcome.run, "check", "approve", "looks good", "grace", console)
    strict = lab("min: 0.9, on_fail: approve, approvers: [grace]").step("check")
    manifest = outcome.states["check"].manifest
    assert [state.verdict for state in judge_gates(strict, manifest, lab.layout)] == ["waiting"]


def test_only_approvers_decide_and_not_about_their_own_run(lab, monkeypatch):
    """Four eyes: accounts of the operating system, whatever name is given."""
    account, console = ACCOUNT, Console()
    plan = lab(f"min: 0.9, on_fail: approve, approvers: [{account}, grace]")
    assert plan.step("check").key == lab("min: 0.9, on_fail: approve").step("check").key
    monkeypatch.setenv("POSTTRAIN_USER", "grace")  # a name that anyone can set
    mine = go(plan, lab.layout)
    with pytest.raises(PlanError, match=f"{account} started run {mine.run}; another approver decides: grace"):
        decide_gates(lab.layout, mine.run, "check", "approve", "looks good", None, console)
    others = go(lab("min: 0.9, on_fail: approve, approvers: [grace]"), lab.layout)
    with pytest.raises(PlanError, match=f"{account} is not among the gate's `approvers`: grace"):
        decide_gates(lab.layout, others.run, "check", "approve", "looks good", None, console)
    with monkeypatch.context() as grace:
        grace.setattr("lineage.audit.log.read_account", lambda: "grace")
        theirs = go(plan, lab.layout)
    with pytest.raises(PlanError, match="leave out --name bob"):
        decide_gates(lab.layout, theirs.run, "check", "approve", "looks good", "bob", console)
    step, manifest = plan.step("check"), theirs.states["check"].manifest
    (gate,) = theirs.states["check"].gates
    record_answer(
        lab.layout, theirs.run, step, manifest, gate, PersonalDecision("approve", account, "a form"), "prefect"
    )
    assert [state.verdict for state in judge_gates(step, manifest, lab.layout)] == ["waiting"]
    decide_gates(lab.layout, theirs.run, "check", "approve", "looks good", None, console)
    assert [state.verdict for state in judge_gates(step, manifest, lab.layout)] == ["approved"]
    entry = [e for e in audit_log.read_entries(lab.layout) if e["action"] == "approve"][-1]
    assert (entry["facts"]["name"], entry["facts"]["via"]) == (account, "command line")


@pytest.mark.parametrize(
    ("step", "words"), [("chek", "did you mean `check`"), ("aside", "no gate of aside can be approved")]
)
def test_nothing_else_can_be_approved(lab, step, words):
    outcome = go(lab("min: 0.9, on_fail: approve"), lab.layout)
    with pytest.raises(PlanError, match=words):
        decide_gates(lab.layout, outcome.run, step, "approve", "why not", None, Console())
    with pytest.raises(PlanError, match="needs a reason"):
        decide_gates(lab.layout, outcome.run, "check", "approve", " ", None, Console())


def attended(plan, layout, pause):
    """The plan carried out as a flow does it: every step in a thread, and a desk that asks people."""
    log = RunLog(layout, "attended")
    log.file.parent.mkdir(parents=True)
    execution = Execution(plan, layout, InProcess(), log, "attended")
    queue = ApprovalQueue(execution, lambda question, over: pause(execution, question, over))
    execution.ask_people = queue.ask
    with ThreadPoolExecutor(len(plan.steps)) as pool:
        ended = {step.name: threading.Event() for step in plan.steps}

        def perform(step):
            for name in step.needs:
                ended[name].wait()
            execution.perform(step)
            ended[step.name].set()

        futures = [pool.submit(perform, step) for step in plan.steps]
        queue.attend(SimpleNamespace(wrapped_future=f, wait=f.result) for f in futures)
    return execution


def test_other_steps_go_on_while_people_think(lab, processes):
    def pause(execution, question, over):
        processes.wait_for(lambda: "aside" in execution.states)
        assert "check" not in execution.states
        assert "polish" not in execution.states
        page = make_evidence_page(execution, question)
        assert "wanted &gt;= 0.9" in page or "wanted >= 0.9" in page
        for part in ("## Samples side by side", "## Lineage", "| base | init |", "core-seconds", "95 %"):
            assert part in page
        return PersonalDecision("approve", "grace", "good enough")

    execution = attended(lab("min: 0.9, on_fail: approve"), lab.layout, pause)
    assert execution.states["check"].gates[0].verdict == "approved"
    assert execution.states["polish"].state == "done"
    events = [e["state"] for e in read_events(lab.layout, "attended") if e["type"] == "step" and e["step"] == "check"]
    assert events == ["running", "waiting", "done"]


def test_a_decision_from_elsewhere_ends_the_question_and_no_answer_leaves_it_open(lab, processes):
    plan = lab("min: 0.9, on_fail: approve")

    def elsewhere(execution, question, over):
        from flows.execution.approval import record_answer

        record_answer(
            lab.layout,
            "attended",
            question.step,
            question.manifest,
            question.gate,
            PersonalDecision("reject", "e", "no"),
            "x",
        )
        processes.wait_for(over)

    assert attended(plan, lab.layout, elsewhere).states["polish"].state == "blocked"
    other = lab("min: 0.8, on_fail: approve")
    shutil.rmtree(lab.layout.run("attended"))
    silent = attended(other, lab.layout, lambda execution, question, over: None)
    assert silent.states["check"].waits == "accuracy"
    assert silent.states["polish"].reason == "a gate of check waits for approval: accuracy"


def test_no_form_opens_for_a_gate_with_approvers(lab):
    """Prefect authenticates no one; without a decision on the command line in time the run ends."""

    def pause(execution, question, over):
        raise AssertionError("a form was shown")

    plan = lab("min: 0.9, on_fail: approve, approvers: [grace], approve_within: 0.1")
    execution = attended(plan, lab.layout, pause)
    (waited,) = [
        e for e in read_events(lab.layout, "attended") if e.get("state") == "waiting" and e["step"] == "check"
    ][:1]
    assert waited["reason"] == "grace may decide: posttrain approve attended check"
    assert execution.states["polish"].state == "blocked"
