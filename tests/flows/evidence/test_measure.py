"""Outcomes over seeds: real runs of a tiny recipe, measured once, continued, refused; closed forms of the parts."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.evidence import commands, measure
from flows.evidence.measure import list_changed_digits
from flows.evidence.scores import ReportScores, pair_scores, read_problem_means, read_report_scores
from flows.evidence.spending import count_completions, find_makers, find_unequal
from flows.planning.recipe_plan import plan_recipe
from lineage.layout import Layout
from lineage.tracking.record import MARK
from schemas.errors import PlanError, RecipeError
from schemas.manifest import Manifest
from schemas.outcome import Outcome
from schemas.pages.evidence import SeedResult, Spent, is_current, judge, read_evidence, write_evidence
from schemas.recipe.load import load_recipe
from tests.small_steps import TINY_DEFAULTS

SUMS = "{use: reasoning_gym, family: chain_sum, split: %s, size: %d, config: {min_terms: 2, max_terms: 2}}"
RECIPE = f"""
vars: {{seed: 1}}
outcome: {{claim: more is more, method: long, against: short, start: base, tolerance: 0.1}}
{TINY_DEFAULTS}
  sft: {{model: base, data: lessons, seed: "${{vars.seed}}", per_device_train_batch_size: 2, max_steps: 1}}
stages:
  base: {{kind: init, tokenizer: {{use: characters}}}}
  lessons: {{kind: synthesize, problems: [{SUMS % ("train", 8)}], teacher: answer}}
  short: {{kind: sft, learning_rate: 1.0e-3}}
  long: {{kind: sft, learning_rate: 2.0e-3}}
  report:
    kind: evaluate
    models: {{base: base, short: short, long: long}}
    tasks: [{SUMS % ("test", 3)}]
    max_completion_length: 2
"""
QUIET = Console(quiet=True)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A state folder in which the recipe was measured, and what came out."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "tiny.yaml").write_text(RECIPE)
    return folder, measure.measure(folder / "tiny.yaml", [1, 2], Layout(folder), "inprocess", QUIET)


def test_an_outcome_is_measured_over_seeds_and_written_with_its_page(measured, monkeypatch, capsys):
    folder, made = measured
    monkeypatch.setenv("POSTTRAIN_ROOT", str(folder))
    written = commands.measure_outcome(
        str(folder / "tiny.yaml"), range(1, 3), folder / "out", "inprocess", Console(width=200)
    )
    assert "tiny: long − short, accuracy, 2 seeds: " in capsys.readouterr().out
    assert written == made == read_evidence(folder / "out" / "tiny.json")
    assert [one.seed for one in made.seeds] == [1, 2]
    assert len({one.method_key for one in made.seeds} | {one.against_key for one in made.seeds}) == 4
    assert all(one.method_spent.tokens > 0 and one.method_spent == one.against_spent for one in made.seeds)
    assert "## tiny" in (folder / "out" / "README.md").read_text()
    assert (folder / "out" / "tiny.svg").read_text().startswith("<svg")


def test_its_runs_are_recorded_in_mlflow_when_they_end_and_not_by_the_next_run(measured):
    folder, _ = measured
    runs = list((Layout(folder).state / "runs").iterdir())
    assert len(runs) == 2
    assert all((run / MARK).is_file() for run in runs)


def test_only_seeds_that_are_missing_are_run(measured, tmp_path, monkeypatch):
    started = []

    def run_plan(plan, *words, real=measure.run_plan, **more):
        started.append(plan.overrides)
        return real(plan, *words, **more)

    monkeypatch.setattr(measure, "run_plan", run_plan)
    folder, made = measured
    shutil.copytree(folder, tmp_path / "copy")
    recipe, layout = folder / "tiny.yaml", Layout(tmp_path / "copy")
    assert measure.measure(recipe, [1, 2], layout, "inprocess", QUIET) == made
    assert not started
    for report in (layout.state / "artifacts").glob("evaluate-*"):
        if made.seeds[1].method_key in (report / "manifest.json").read_text():
            shutil.rmtree(report)
    assert measure.measure(recipe, [1, 2], layout, "inprocess", QUIET) == made
    assert started == [("vars.seed=2",)]


def test_verification_measures_from_nothing_and_names_each_digit_that_differs(measured, tmp_path, capsys):
    folder, made = measured
    console = Console(width=200)
    write_evidence(made, tmp_path / "tiny.json")
    assert commands.verify_outcome(str(folder / "tiny.yaml"), tmp_path, "inprocess", console)
    assert "tiny: the same digits, 2 seeds from an empty state" in capsys.readouterr().out
    first = made.seeds[0].model_copy(update={"method": 0.75})
    other = made.model_copy(update={"value": 0.5, "seeds": (first, made.seeds[1])})
    assert list_changed_digits(other, made) == [
        f"value: 0.5 → {made.value}",
        f"seed 1: 0.75, {first.against} → {made.seeds[0].method}, {first.against}",
    ]
    fewer = made.model_copy(update={"seeds": made.seeds[:1]})
    assert list_changed_digits(made, fewer) == ["seed 2: not measured"]
    with pytest.raises(PlanError, match="measure it first: posttrain evidence"):
        commands.verify_outcome(str(folder / "tiny.yaml"), tmp_path / "none", "inprocess", console)


def test_other_costs_are_refused_unless_the_recipe_says_why(lab):
    recipe = lab / "tiny.yaml"
    recipe.write_text(RECIPE.replace("long: {kind: sft,", "long: {kind: sft, max_steps: 2,"))
    with pytest.raises(PlanError, match=r"tiny.yaml: not comparable: tokens per seed: long [\d,]+, short [\d,]+; make"):
        measure.measure(recipe, [1, 2], Layout(lab), "inprocess", QUIET)
    recipe.write_text(recipe.read_text().replace("tolerance: 0.1", "unequal: twice as long"))
    assert measure.measure(recipe, [1, 2], Layout(lab), "inprocess", QUIET).outcome.unequal == "twice as long"


def test_a_recipe_whose_seed_changes_nothing_or_without_an_outcome_is_refused(lab):
    recipe = lab / "tiny.yaml"
    recipe.write_text(RECIPE.replace('seed: "${vars.seed}", ', ""))
    with pytest.raises(PlanError, match="the seed changes nothing"):
        measure.measure(recipe, [1, 2], Layout(lab), "inprocess", QUIET)
    recipe.write_text(RECIPE.replace("vars: {seed: 1}", "").replace('"${vars.seed}"', "3"))
    with pytest.raises(PlanError, match="has no variable `seed`"):
        measure.read_outcome(load_recipe(recipe))
    with pytest.raises(PlanError, match=r"declares no `outcome:`"):
        measure.read_outcome(
            replace(load_recipe(recipe), head=load_recipe(recipe).head.model_copy(update={"outcome": None}))
        )
    with pytest.raises(PlanError, match=r"no outcome of `xrpoo`; did you mean `xrpo`"):
        measure.find_outcome_recipe("xrpoo")


def test_seeds_are_equal_only_if_no_step_that_made_the_method_differs():
    """A model may be the same for all seeds, and what belongs to it, as its solver, another for each."""
    runs = [SimpleNamespace(method_keys=keys) for keys in (("solver 1", "model"), ("solver 2", "model"))]
    measure.refuse_equal_seeds("r.yaml", runs)
    with pytest.raises(PlanError, match="the seed changes nothing"):
        measure.refuse_equal_seeds("r.yaml", [*runs, runs[0]])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("against: short", "against: shrot", r"outcome.against: `report` evaluates no model `shrot`"),
        ("method: long", "method: short", r"outcome.against: a method cannot be compared with itself"),
        ("tolerance: 0.1", "report: repotr", r"outcome.report: `repotr` is no evaluate stage"),
        ("tolerance: 0.1", "metric: acuracy", r"outcome.metric: `report` has no metric `acuracy`.*\n.*`accuracy`"),
        ("tolerance: 0.1", "metric: pass_at_8.sums", r"outcome.metric: `report` has no metric `pass_at_8.sums`"),
    ],
)
def test_an_outcome_of_what_a_recipe_lacks_is_an_error_with_its_line(lab, old, new, message):
    (lab / "tiny.yaml").write_text(RECIPE.replace(old, new))
    with pytest.raises(RecipeError, match=rf"tiny.yaml:3:\d+: {message}"):
        load_recipe(lab / "tiny.yaml")


def test_evidence_is_out_of_date_when_a_setting_changes_and_not_when_a_text_does(measured, lab):
    recipe, made = lab / "tiny.yaml", measured[1]
    assert is_current(made, recipe)
    recipe.write_text(RECIPE.replace("more is more", "less is less"))
    assert is_current(made, recipe)
    recipe.write_text(RECIPE.replace("2.0e-3", "3.0e-3"))
    assert not is_current(made, recipe)
    recipe.write_text(RECIPE.replace("outcome: {", "outcome: {margin: 0.1, "))
    assert not is_current(made, recipe)


def test_a_metric_that_the_report_lacks_is_refused_by_name(measured):
    folder, _ = measured
    keys = [file.parent for file in (folder / ".posttrain/artifacts").glob("evaluate-*/manifest.json")]
    report = Manifest.model_validate_json((keys[0] / "manifest.json").read_text())
    with pytest.raises(PlanError, match=r"the report has no `pass_at_8` of long"):
        read_report_scores(report, "pass_at_8", ("long",), 1.0, Layout(folder))


def test_completions_are_summed_over_the_points_of_a_curve(measured, tmp_path):
    plan = plan_recipe(measured[0] / "tiny.yaml", Layout(tmp_path))
    step = plan.step("long").model_copy(update={"kind": "rl"})
    folder = tmp_path / ".posttrain" / "artifacts" / f"rl-{step.key[:16]}"
    folder.mkdir(parents=True)
    points = [
        {"step": 10, "completions": 130.8},
        {"step": 20, "completions": 128.0},
        {"step": 23, "completions": 131.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    assert count_completions(step, Layout(tmp_path)) == 1308 + 1280 + 393
    assert count_completions(plan.step("long"), Layout(tmp_path)) == 0


def test_verdicts_follow_from_the_ends_of_the_interval():
    assert [judge(0.01, 0.2), judge(0.0, 0.2), judge(-0.2, 0.0), judge(-0.2, -0.01)] == [
        "reproduced",
        "level",
        "level",
        "refuted at this size",
    ]
    assert [judge(0.0, 0.0), judge(0.0, 0.0, 0.02)] == ["no effect", "reproduced"]
    assert [judge(-0.019, 0.2, 0.02), judge(-0.02, 0.2, 0.02), judge(-0.2, -0.021, 0.02)] == [
        "reproduced",
        "level",
        "refuted at this size",
    ]


def test_scores_are_paired_by_problem_and_only_shared_ones_count():
    one = ReportScores({"a": 0.5, "b": 0.25}, {"a": {"p": 1.0, "q": 0.0}, "b": {"p": 0.5, "q": 0.0, "r": 1.0}})
    two = ReportScores({"a": 0.5, "b": 0.5}, {"a": {"q": 1.0, "p": 0.0}, "b": {"p": 0.5, "q": 0.5}})
    assert pair_scores([one, two], "a", "b") == pytest.approx(np.array([[0.5, 0.0], [-0.5, 0.5]]))
    whole = [replace(x, problems={}) for x in (one, two)]
    assert pair_scores(whole, "a", "b") == pytest.approx(np.array([[0.25], [0.0]]))
    other = ReportScores({}, {"a": {"x": 1.0}, "b": {"x": 1.0}})
    with pytest.raises(PlanError, match="no problem in common"):
        pair_scores([one, other], "a", "b")


def test_completions_and_tokens_that_differ_are_named():
    outcome = Outcome(claim="x", method="m", against="b")

    def seed(completions, tokens):
        ours, theirs = Spent(completions=completions, tokens=tokens), Spent(completions=128, tokens=1000)
        return SeedResult(
            seed=1, method=0, against=0, method_spent=ours, against_spent=theirs, method_key="", against_key=""
        )

    assert find_unequal(outcome, [seed(128, 1000), seed(130, 1040)]) == []
    assert find_unequal(outcome, [seed(148, 1000)]) == ["completions per seed: m 148, b 128"]
    assert find_unequal(outcome, [seed(128, 900)]) == ["tokens per seed: m 900, b 1,000"]


def test_a_problem_counts_the_samples_that_reach_the_threshold_and_not_their_scores(tmp_path):
    layout, manifest = Layout(tmp_path), SimpleNamespace(kind="evaluate", key="k" * 64)
    folder = layout.artifact("evaluate", manifest.key) / "outputs/report"
    folder.mkdir(parents=True)
    scores = {"a": [0.9, 0.5, 1.0, None], "b": [0.79, 0.8 - 1e-12, 0.0, 0.1]}
    rows = [{"model": "m", "id": id, "family": "f", "score": s} for id, of in scores.items() for s in of]
    pq.write_table(pa.Table.from_pylist(rows), folder / "samples.parquet")
    assert read_problem_means(manifest, None, 0.8, layout) == {"m": {"a": 2 / 3, "b": 1 / 4}}


def test_what_a_model_plays_in_was_made_for_it_too():
    ports = {
        "models.a": ["m1", "m2"],
        "envs.a.tools.0.of": ["tool"],
        "envs.ab.tools.0.of": ["other"],
        "agents.b": ["k"],
        "models.d": ["m3"],
        "logits_processors.d.0.values": ["q"],
    }
    inputs = [SimpleNamespace(port=port, steps=steps) for port, steps in ports.items()]
    step = SimpleNamespace(inputs=inputs, kind="sft", key="k")
    plan = SimpleNamespace(
        recipe="r", step=lambda name: SimpleNamespace(inputs=inputs, kind="sft", key=name, settings={})
    )
    store = SimpleNamespace(find=lambda kind, key: None if key == "m1" else step)
    assert find_makers(plan, "report", "a", store) == ["tool", "m2"]
    assert find_makers(plan, "report", "b", store) == ["k"]
    assert find_makers(plan, "report", "d", store) == ["q", "m3"]
    with pytest.raises(PlanError, match="no step of this run makes c"):
        find_makers(plan, "report", "c", store)
