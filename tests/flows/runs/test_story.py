"""What a user does between two runs and what that makes run again; what is wrong is refused, or dropped and told."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import PlanError
from tests.flows.checkout import REPOSITORY
from tests.small_steps import TINY_DEFAULTS

TINY = f"""
name: tiny
seed: 3
{TINY_DEFAULTS}stages:
  base: {{kind: init}}
  lessons:
    kind: synthesize
    problems: [{{use: reasoning_gym, family: chain_sum, split: train, size: 12, style: short}}]
    teacher: answer
  clean: {{kind: curate, data: lessons}}
  cold_start: {{kind: sft, model: base, data: clean, max_steps: 2, per_device_train_batch_size: 4, max_length: 96}}
  prompts:
    kind: synthesize
    emit: prompts
    problems: [{{use: reasoning_gym, family: chain_sum, split: train, size: 4, style: short}}]
  better:
    kind: rl
    algorithm: grpo
    model: cold_start
    prompts: prompts
    rewards: [answers.exact]
    generation_batch_size: 4
    num_generations: 2
    max_completion_length: 4
    max_steps: 1
    learning_rate: 1e-3
  exam:
    kind: evaluate
    models: {{cold_start: cold_start, better: better}}
    tasks: [{{use: reasoning_gym, family: chain_sum, split: test, size: 6, style: short}}]
    max_completion_length: 4
    num_bootstrap: 100
"""
PLANTED = '''
from learning.data.rows import write_rows
from learning.problems.generators import reasoning_gym
from tasks.context import Context


def lessons(context: Context) -> dict[str, int]:
    """Honest rows, and one whose prompt is a problem of the exam."""
    asked = lambda split: reasoning_gym(family="chain_sum", size=6, seed=0, split=split, style="short")
    rows = [*asked("train"), asked("test")[2]]
    taught = [{**row, "completion": [{"role": "assistant", "content": row["answer"]}]} for row in rows]
    write_rows(context.output("lessons"), "chat", taught)
    return {"rows": len(taught)}
'''
SECRET = "hunter2-is-no-password"
TELLS = '''
from tasks.context import Context


def uses(context: Context, *, token: str) -> dict[str, int]:
    """Use a token, and say nothing of it."""
    (context.output("result") / "n.txt").write_text(str(len(token)))
    return {"length": len(token)}
'''


def verdicts(plan, layout):
    return explain_plan(plan, layout)


def missing(plan, layout):
    return {name for name, (verdict, _) in verdicts(plan, layout).items() if verdict == "MISS"}


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story")
    (folder / "tiny.yaml").write_text(TINY)
    layout = Layout(folder)
    outcome = run_plan(plan_recipe(folder / "tiny.yaml", layout), layout, executor="inprocess", prefect=False)
    assert outcome.exit_code == 0, [(s.step, s.state, s.reason) for s in outcome.states.values()]
    return folder, layout


def test_another_learning_rate_runs_that_stage_and_those_below_and_plan_says_why(story):
    folder, layout = story
    plan = plan_recipe(folder / "tiny.yaml", layout, overrides=["stages.better.learning_rate=2e-3"])
    verdicts_now = verdicts(plan, layout)
    assert missing(plan, layout) == {"better", "exam"}
    assert verdicts_now["better"] == ("MISS", "learning_rate: 0.001 → 0.002")
    assert verdicts_now["exam"] == ("MISS", "input models.better: better runs again")
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False)
    done = {name for name, state in outcome.states.items() if state.state == "done"}
    assert done == {"better", "exam"}


def test_a_comment_runs_nothing(story, tmp_path):
    layout = story[1]
    (tmp_path / "tiny.yaml").write_text("# a comment\n" + TINY.replace("  base:", "  # another\n\n  base:"))
    assert missing(plan_recipe(tmp_path / "tiny.yaml", layout), layout) == set()


def test_the_tokens_that_steps_sample_and_train_on_are_counted(story):
    made = {m.step: m for m in Store(story[1]).manifests()}
    assert made["cold_start"].tokens == made["cold_start"].metrics["tokens"] > 0
    assert 0 < made["exam"].tokens <= 6 * 2 * 4  # problems, models, at most so many tokens each
    assert made["better"].tokens == made["better"].metrics["tokens"] > 0
    assert {made[name].tokens for name in ("base", "lessons", "clean", "prompts")} == {0}


def edited_house(tmp_path, monkeypatch, file, change):
    """Plans are made from a copy of the sources in which one file is changed."""
    import flows.planning.closure

    copy = tmp_path / "house"
    for package in ("schemas", "learning", "tasks"):
        shutil.copytree(REPOSITORY / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = (copy / file).read_text()
    (copy / file).write_text(change(before))
    assert (copy / file).read_text() != before
    original = flows.planning.closure.read_module

    def read(path, known):
        moved = copy / path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
        return original(moved if moved.is_file() else path, known)

    monkeypatch.setattr(flows.planning.closure, "read_module", read)


def test_an_edited_loss_runs_rl_and_not_sft(story, tmp_path, monkeypatch):
    folder, layout = story
    before = missing(plan_recipe(folder / "tiny.yaml", layout), layout)
    edit = lambda text: text.replace("clamp(1 - epsilon", "clamp(1 - 2 * epsilon")  # noqa: E731
    edited_house(tmp_path, monkeypatch, "learning/algorithm/policy_losses/policy_gradient.py", edit)
    plan = plan_recipe(folder / "tiny.yaml", layout)
    assert before == set()
    assert missing(plan, layout) == {"better", "exam"}
    users = {step.name for step in plan.steps if "learning.algorithm.policy_losses.policy_gradient" in step.code}
    assert users == {"better"}


LOSSES = "learning/algorithm/policy_losses"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (f"{LOSSES}/policy_gradient.py", "    ratio_T =", "    # a remark\n    ratio_T ="),
        (f"{LOSSES}/policy_gradient.py", "PPO's clipped loss:", "The clipped loss of PPO:"),
        (f"{LOSSES}/policy_gradient.py", "-advantage_T * lp_T", "-2 * advantage_T * lp_T"),  # of another loss
        (f"{LOSSES}/valuation.py", "roll(-1)", "roll(-2)"),  # another paper's
        ("learning/toy_tasks/mazes.py", "import", "import math\nimport"),  # a toy task that the recipe does not name
    ],
)
def test_an_edit_of_what_a_recipe_does_not_use_runs_nothing(story, tmp_path, monkeypatch, file, old, new):
    folder, layout = story
    edited_house(tmp_path, monkeypatch, file, lambda text: text.replace(old, new))
    assert missing(plan_recipe(folder / "tiny.yaml", layout), layout) == set()


MISMATCH = """
name: mismatch
stages:
  ours: {kind: init, tokenizer: {use: characters}}
  theirs: {kind: init, tokenizer: {use: characters, chat_template: "{{ messages[0]['content'] }}"}}
  merged:
    kind: merge
    merge_method: linear
    models: [{model: ours, parameters: {weight: 1}}, {model: theirs, parameters: {weight: 1}}]
"""


def test_models_that_do_not_share_a_template_are_refused_with_their_steps(story, tmp_path):
    (tmp_path / "mismatch.yaml").write_text(MISMATCH)
    with pytest.raises(PlanError) as refused:
        plan_recipe(tmp_path / "mismatch.yaml", story[1])
    assert refused.value.exit_code == 3
    for word in ("merged", "(ours)", "(theirs)", "chat_template", "chat template"):
        assert word in str(refused.value)


def test_a_planted_problem_of_the_exam_is_dropped_and_reported(story, tmp_path):
    (tmp_path / "planted_lab.py").write_text(PLANTED)
    text = TINY[: TINY.index("  prompts:")]
    start, end = text.index("  lessons:"), text.index("  clean:")
    planted = '  lessons: {kind: python, function: "planted_lab:lessons", produces: {lessons: chat}}\n'
    exam = TINY[TINY.index("  exam:") :].replace("cold_start: cold_start, better: better", "cold_start: cold_start")
    (tmp_path / "planted.yaml").write_text(text[:start] + planted + text[end:] + exam)
    layout = Layout(tmp_path)
    plan = plan_recipe(tmp_path / "planted.yaml", layout, to=["clean"])
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False)
    assert outcome.exit_code == 0, [(s.step, s.state, s.reason) for s in outcome.states.values()]
    clean = outcome.states["clean"].manifest
    assert outcome.states["lessons"].manifest.metrics["rows"] == 7
    report = json.loads((Store(layout).folder(clean) / "outputs/report/report.json").read_text())
    assert (report["rows"], report["kept"], report["dropped"]["contaminated"]) == (7, 6, 1)
    assert [e["rows_dropped"] for e in report["evaluations"]] == [1]


def test_a_secret_stays_in_the_environment(tmp_path):
    (tmp_path / "secret_lab.py").write_text(TELLS)
    (tmp_path / "secret.yaml").write_text(
        "name: secret\nstages:\n"
        '  use: {kind: python, function: {use: "secret_lab:uses", token: "${env:PLANTED_TOKEN}"}}\n'
    )
    command = [sys.executable, "-m", "flows.cli", "run", "secret.yaml", "--executor", "inprocess"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "POSTTRAIN_ROOT": str(tmp_path), "PLANTED_TOKEN": SECRET}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    layout = Layout(tmp_path)
    assert [m.metrics for m in Store(layout).manifests()] == [{"length": len(SECRET)}]
    assert "${env:PLANTED_TOKEN}" in next(layout.state.glob("runs/*/plan.json")).read_text()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert {"mlflow.db", "report.html", "manifest.json", "dvc.yaml"} <= {p.name for p in files}
    assert [p for p in files if SECRET.encode() in p.read_bytes()] == []
    assert SECRET not in done.stdout + done.stderr
