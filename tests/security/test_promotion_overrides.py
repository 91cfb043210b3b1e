"""What a run may change and still promote: never the gate, nor what the gate judges by, unless a person answers."""

import json
import subprocess

import pytest
import yaml
from typer.testing import CliRunner

from flows.champions.committed_recipe import list_promotion_changes, read_committed_recipe
from flows.champions.promotion import promote_after
from flows.cli import app
from flows.execution.run_log import list_runs
from flows.execution.states import StepState
from flows.planning.recipe_plan import plan_recipe
from lineage.artifacts.store import Store
from lineage.audit import log as audit_log
from lineage.audit.approvals import decisions_file
from lineage.layout import Layout
from lineage.registry.champions import find_champion
from schemas.errors import PlanError
from tests.registries import lay_empty_registry
from tests.small_steps import TINY_DEFAULTS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own dependencies
RECIPE = """\
extends: base.yaml
name: small
seed: 3
vars: {wanted: 0.0}
promote: {model: two, gate: exam, name: chat}
profiles:
  tiny: {stages: {exam: {limit: 2}}}
stages:
  one: {kind: init}
  two: {kind: init, seed: 4}
  held_out:
    kind: synthesize
    emit: prompts
    problems: [{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}]
  exam:
    kind: evaluate
    models: {one: one, two: two}
    prompts: held_out
    max_completion_length: 4
    num_bootstrap: 100
    gate: {metric: accuracy, min: "${vars.wanted}", on_fail: approve}
"""
STRICT = RECIPE.replace("wanted: 0.0", "wanted: 0.5")


def git(folder, *words):
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


class Lab:
    """A checkout under Git with a recipe of two files."""

    def __init__(self, folder):
        self.folder, self.layout = folder, Layout(folder)

    def __call__(self, *words, code=0):
        done = CliRunner().invoke(app, list(words))
        if done.exception is not None and hasattr(done.exception, "exit_code"):
            assert done.exception.exit_code == code, done.exception
            return str(done.exception)
        assert done.exit_code == code, (done.output, done.exception)
        return done.output + done.stderr

    def run(self, *words, code=0, recipe="small.yaml"):
        return self("run", recipe, "--executor", "inprocess", *words, code=code)

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def commit(self):
        git(self.folder, "add", "-A", "*.yaml")
        git(self.folder, "commit", "-qm", "recipes")

    def made(self, step):
        return [m for m in Store(self.layout).manifests() if m.step == step]

    def changes(self, *overrides, file="small.yaml", profile=None):
        plan = plan_recipe(file, self.layout, overrides=overrides, profile=profile)
        return list_promotion_changes(plan, read_committed_recipe(plan.file, profile, self.layout), self.layout)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overrides")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTTRAIN_ROOT", str(folder))
        patch.setenv("POSTTRAIN_USER", "ada")
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        lab = Lab(folder)
        lay_empty_registry(lab.layout)
        lab.write("base.yaml", TINY_DEFAULTS)
        lab.write("small.yaml", STRICT)
        git(folder, "init", "-q")
        lab.commit()
        yield lab


@pytest.fixture(autouse=True)
def as_committed(lab):
    lab.write("base.yaml", TINY_DEFAULTS)
    lab.write("small.yaml", STRICT)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.exam.gate.min=0.0", "stages.exam.gate.0.min: 0.5 → 0.0"),
        ("vars.wanted=0.0", "stages.exam.gate.0.min: 0.5 → 0.0"),
        ("stages.exam.gate.on_fail=warn", "stages.exam.gate.0.on_fail: approve → warn"),
        ("stages.exam.limit=1", "stages.exam.limit: null → 1"),
        ("stages.exam.num_generations=1", None),
        ("stages.exam.threshold=-5.0", "stages.exam.threshold: 1.0 → -5.0"),
        ("stages.exam.rewards=[{use: answers.exact, ignore_case: true}]", "stages.exam.rewards.0.ignore_case"),
        ("stages.exam.confidence=0.5", "stages.exam.confidence: 0.95 → 0.5"),
        ("stages.exam.seed=9", "stages.exam.seed: 3 → 9"),
        ("seed=9", "seed: 3 → 9"),
        (
            "stages.held_out.problems=[{use: reasoning_gym, family: chain_sum, split: test, size: 1, style: short}]",
            "stages.held_out.problems.0.size: 4 → 1",
        ),
        ("stages.one.seed=9", "stages.one.seed: 3 → 9"),  # the rival of the table
        ("stages.exam.models={two: two}", "stages.exam.models.one"),
        ("promote.name=other", "promote.name: chat → other"),
        ("name=large", None),
        ("stages.two.seed=9", None),  # what is judged may be another: that is what a gate is for
        ("stages.two.retries=2", None),
    ],
)
def test_which_overrides_are_not_the_committed_gate(lab, override, message):
    changes = lab.changes(override)
    assert bool(changes) == (message is not None), changes
    assert message is None or any(message in line for line in changes), changes


def test_a_profile_that_is_committed_is_no_override(lab):
    assert lab.changes(profile="tiny") == []
    lab.write("small.yaml", STRICT.replace("limit: 2", "limit: 1"))
    assert lab.changes(profile="tiny") == ["stages.exam.limit: 2 → 1"]


def test_files_that_were_edited_or_are_not_committed(lab):
    lab.write("small.yaml", "# a remark\n" + STRICT.replace("{kind: init, seed: 4}", "{kind: init, seed: 5}"))
    assert lab.changes() == []
    committed = read_committed_recipe("small.yaml", None, lab.layout)
    assert (committed.edited, len(committed.version)) == (("small.yaml",), 40)
    lab.write("small.yaml", RECIPE)
    assert lab.changes() == ["stages.exam.gate.0.min: 0.5 → 0.0"]
    lab.write("small.yaml", STRICT)
    lab.write("base.yaml", TINY_DEFAULTS + "  evaluate: {limit: 1}\n")
    assert lab.changes() == ["stages.exam.limit: null → 1"]
    assert read_committed_recipe("small.yaml", None, lab.layout).edited == ("base.yaml",)
    lab.write("base.yaml", TINY_DEFAULTS)
    lab.write("draft.yaml", RECIPE)
    with pytest.raises(PlanError, match=r"draft\.yaml is not committed; commit it"):
        lab.changes(file="draft.yaml")
    (lab.folder / "draft.yaml").unlink()
    with pytest.raises(PlanError, match="no longer exists"):
        read_committed_recipe("draft.yaml", None, lab.layout)


def test_a_recipe_outside_the_repository_of_the_checkout_is_not_its_committed_one(lab, tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(RECIPE)
    (tmp_path / "base.yaml").write_text(TINY_DEFAULTS)
    with pytest.raises(PlanError, match="is outside the repository of this checkout"):
        read_committed_recipe(str(tmp_path / "small.yaml"), None, lab.layout)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "small.yaml", "base.yaml")
    git(tmp_path, "commit", "-qm", "my own")
    with pytest.raises(PlanError, match="is outside the repository of this checkout"):
        read_committed_recipe(str(tmp_path / "small.yaml"), None, lab.layout)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))  # Git is not led to another repository
    lab.write("small.yaml", RECIPE)
    assert lab.changes() == ["stages.exam.gate.0.min: 0.5 → 0.0"]
    assert read_committed_recipe(str(tmp_path / "small.yaml"), None, Layout(tmp_path)).recipe.name == "small"


def test_outside_git_the_file_counts_and_that_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab = Lab(tmp_path)
    lab.write("base.yaml", TINY_DEFAULTS)
    lab.write("small.yaml", RECIPE)
    assert lab.changes() == []
    assert lab.changes("vars.wanted=0.25") == ["stages.exam.gate.0.min: 0.0 → 0.25"]
    committed = read_committed_recipe("small.yaml", None, lab.layout)
    assert (committed.version, committed.edited) == ("not under version control", ())


def test_the_story_of_an_override(lab):
    """One test, for its steps follow from one another."""
    # The gate of the file says no; an override of it makes it pass, and promotes nothing.
    output = lab.run("--set", "stages.exam.gate.min=0.0")
    assert "warning: this run will not promote: its settings differ from the committed recipe" in output
    unchanged = "champion of chat unchanged: settings differ from the committed recipe"
    assert f"{unchanged}: stages.exam.gate.0.min: 0.5 → 0.0" in output
    (two,), (exam,) = lab.made("two"), lab.made("exam")
    words = ("promote", two.key[:16], "--gate", exam.key[:16], "--name", "chat")
    assert f"posttrain {' '.join(words)} --approve-override --why TEXT" in output
    assert find_champion(lab.layout, "chat") is None
    # Nor afterwards, by hand or by a run that finds the evaluation there.
    assert "settings differ from the committed recipe: stages.exam.gate.0.min: 0.5 → 0.0" in lab(*words, code=2)
    lab.write("small.yaml", RECIPE)
    assert "settings differ from the committed recipe: stages.exam.gate.0.min: 0.5 → 0.0" in lab.run()
    lab.write("small.yaml", STRICT)
    assert "needs a reason" in lab(*words, "--approve-override", code=3)
    assert find_champion(lab.layout, "chat") is None
    # A person answers for it, and the log says who, why and for what.
    output = lab(*words, "--approve-override", "--why", "the exam is new", "--who", "Grace")
    assert output.startswith("champion of chat: none → version 1, two")
    entry = [e for e in audit_log.read_entries(lab.layout) if e["action"] == "promote"][-1]
    assert entry["facts"]["evidence"]["override"] == {
        "approved_by": audit_log.name_person("Grace"),
        "why": "the exam is new",
        "changes": ["stages.exam.gate.0.min: 0.5 → 0.0"],
    }
    assert entry["facts"]["evidence"]["set"] == ["stages.exam.gate.min=0.0"]
    assert "Grace" in lab("champions", "chat")
    # Committed, the same gate needs no answer; what was set beside it is kept with the promotion.
    lab.write("small.yaml", RECIPE)
    lab.commit()
    assert "champion of chat unchanged" not in lab.run("--set", "stages.two.seed=6", "--no-promote")
    assert find_champion(lab.layout, "chat").version == 1
    assert "champion of chat: version 1 → version 2" in lab.run("--set", "stages.two.seed=6")
    evidence = find_champion(lab.layout, "chat").by.evidence
    assert (evidence["set"], evidence["committed"]["edited"]) == (["stages.two.seed=6"], [])
    assert len(evidence["committed"]["version"]) == 40
    lab.write("small.yaml", STRICT)
    lab.commit()
    # An evaluation that the recipe's gate does not want any more proves nothing.
    older = lab.made("exam")[-1]
    words = ("promote", lab.made("two")[-1].key[:16], "--gate", older.key[:16], "--name", "else")
    assert "settings differ from the committed recipe: stages.exam.gate.0.min: 0.5 → 0.0" in lab(*words, code=2)


def test_a_plan_that_was_edited_is_not_gone_on_with(lab):
    lab.run(code=2)  # the gate waits for a person
    run = list_runs(lab.layout)[0]
    file = lab.layout.run(run) / "plan.json"
    before = file.read_text()
    plan = json.loads(before)
    exam = next(step for step in plan["steps"] if step["name"] == "exam")
    exam["settings"]["gate"][0]["min"] = 0.0
    file.write_text(json.dumps(plan))
    assert "differs from the plan that the audit log has" in lab("resume", run, "--executor", "inprocess", code=3)
    # As a run of its own, which the log never saw: its keys do not fit what it does.
    other = lab.layout.run("20990101-000000-000000")
    other.mkdir(parents=True)
    (other / "plan.json").write_text(json.dumps(plan))
    assert "the settings of exam do not match its key" in lab("resume", other.name, "--executor", "inprocess", code=3)
    (other / "plan.json").unlink()
    file.write_text(before)
    lab("resume", run, "--executor", "inprocess", code=2)


def test_an_approval_that_only_lies_beside_the_log_counts_for_nothing(lab):
    lab.run(code=2)
    plan = plan_recipe("small.yaml", lab.layout)
    exam, two = (Store(lab.layout).with_key(plan.step(name).key) for name in ("exam", "two"))
    record = {"gate": 0, "decision": "approve", "name": "Grace", "reason": "why not", "at": "2026-01-01"}
    decisions_file(lab.layout, exam.key).parent.mkdir(exist_ok=True)
    decisions_file(lab.layout, exam.key).write_text(json.dumps(record) + "\n")
    output = lab("promote", two.key, "--gate", exam.key, "--name", "else", code=2)
    assert output == "the audit log has no approval of gate 0 of exam: approve it again"
    assert "the audit log has no approval" in lab.run()
    decisions_file(lab.layout, exam.key).unlink()
    lab("approve", list_runs(lab.layout)[0], "exam", "--approve", "--reason", "the exam is too hard", "--name", "Grace")
    assert lab("promote", two.key, "--gate", exam.key, "--name", "else").startswith("champion of else: none")


def test_what_a_form_of_a_deployment_sets_is_an_override_as_well(lab):
    """A form's seed and overrides are those of `plan_recipe`, and what ends a run of Prefect is `promote_after`."""
    CliRunner().invoke(app, ["run", "small.yaml", "--executor", "inprocess", "--no-promote"])
    plan = plan_recipe("small.yaml", lab.layout, overrides=["stages.exam.gate.on_fail=warn", "seed=9"])
    kept = plan_recipe("small.yaml", lab.layout)
    states = {s.name: StepState(s.name, "cached", manifest=Store(lab.layout).with_key(s.key)) for s in kept.steps}
    verdict = promote_after(plan, states, lab.layout)
    assert (verdict.moved, "unchanged" in verdict.text) == (False, True)
    assert yaml.safe_load(STRICT)["promote"]["gate"] == "exam"
