"""Kind search in a run: what it keeps, what a second run and a killed one repeat, and a language model."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.runs.start import start_run
from learning.control import training
from learning.search.study import Study
from lineage.layout import Layout
from schemas.package import ROOT
from schemas.stages.search import Search

RECIPE = """\
name: steered
seed: 1
stages:
  policy:
    kind: control
    env: "tests.control_worlds:line"
    algorithm: dagger
    loss: {use: bc, stochastic: false}
    relabel: {expert: "tests.control_worlds:steer"}
    networks: {hidden_sizes: []}
    environment_steps: 80
    learning_starts: 16
    save_steps: 20
    batch_size: 16
    learning_rate: 1.0e-6
  validation:
    kind: evaluate_control
    seed: 2
    env: "tests.control_worlds:line"
    models: {policy: policy}
    episodes: 4
    num_bootstrap: 100
  tuned:
    kind: search
    train: policy
    evaluate: validation
    metric: mean_return
    space: {learning_rate: {low: 1.0e-4, high: 0.3, log: true}, batch_size: [8, 16]}
    trials: 4
"""


def run(folder, text=RECIPE, *overrides):
    """Run a recipe in a folder of its own; return the manifests by step, and the outcome."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(text)
    layout = Layout(folder)
    plan = plan_recipe(folder / "recipe.yaml", layout, overrides=overrides)
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False)
    found = [json.loads(p.read_text()) for p in (folder / ".posttrain/artifacts").glob("*/manifest.json")]
    keys = {step.key for step in plan.steps}  # an earlier run in the folder has left others
    return {manifest["step"]: manifest for manifest in found if manifest["key"] in keys}, outcome


def read_trials(manifest):
    """What the manifest says of every trial, without the time that it took."""
    return [{k: v for k, v in one.items() if k != "seconds"} for one in manifest["details"]["search"]["trials"]]


def test_the_best_trial_is_kept_with_its_settings_and_a_second_run_does_nothing(tmp_path):
    made, outcome = run(tmp_path / "whole")
    assert outcome.exit_code == 0, outcome.states
    search = made["tuned"]["details"]["search"]
    values = [trial["value"] for trial in search["trials"]]
    assert len(set(values)) == 4
    assert search["best"] == int(np.argmax(values))
    assert search["baseline"] == made["validation"]["metrics"]["mean_return.policy"] < max(values)
    assert made["tuned"]["metrics"]["mean_return"] == max(values)
    assert {trial["settings"]["batch_size"] for trial in search["trials"]} <= {8, 16}
    assert all(1e-4 <= trial["settings"]["learning_rate"] <= 0.3 for trial in search["trials"])
    again = plan_recipe(tmp_path / "whole/recipe.yaml", Layout(tmp_path / "whole"))
    assert {verdict for verdict, _ in explain_plan(again, Layout(tmp_path / "whole")).values()} == {"HIT"}

    best = search["settings"]
    by_hand = [f"stages.policy.{name}={value!r}" for name, value in best.items()]
    other, _ = run(tmp_path / "by_hand", RECIPE.partition("  tuned:")[0], *by_hand)
    assert other["policy"]["outputs"]["model"]["digest"] == made["tuned"]["outputs"]["model"]["digest"]
    assert other["validation"]["metrics"]["mean_return.policy"] == max(values)


@pytest.mark.parametrize("trial", [0, 2])
def test_a_killed_search_goes_on_inside_its_trial_and_ends_with_the_same_digests(trial, tmp_path, monkeypatch):
    whole, _ = run(tmp_path / "whole")
    iterate, counts = training.ControlLoop.iterate, []

    def interrupt(self, iteration):
        counts.append(iteration)
        if counts.count(50) == trial + 2:  # the baseline is the first
            raise KeyboardInterrupt
        iterate(self, iteration)

    monkeypatch.setattr(training.ControlLoop, "iterate", interrupt)
    _, outcome = run(tmp_path / "cut")
    assert outcome.exit_code == 1
    before = len(counts)
    monkeypatch.setattr(training.ControlLoop, "iterate", lambda self, i: (counts.append(i), iterate(self, i))[1])
    cut, outcome = run(tmp_path / "cut")
    assert outcome.exit_code == 0
    assert len(counts) - before == 80 * (3 - trial) + 40  # the interrupted one from its checkpoint at 40
    assert read_trials(cut["tuned"]) == read_trials(whole["tuned"])
    digests = [{name: one["digest"] for name, one in made["tuned"]["outputs"].items()} for made in (whole, cut)]
    assert digests[0] == digests[1]


def test_the_model_stays_where_no_trial_is_better(tmp_path):
    made, _ = run(tmp_path, RECIPE, "stages.policy.learning_rate=0.05", "stages.tuned.direction=minimize")
    search = made["tuned"]["details"]["search"]
    values = [trial["value"] for trial in search["trials"]]
    assert search["best"] == int(np.argmin(values))
    made, _ = run(
        tmp_path, RECIPE, "stages.policy.learning_rate=0.05", "stages.tuned.space={learning_rate: [1e-7, 1e-8]}"
    )
    assert made["tuned"]["details"]["search"]["best"] is None
    assert made["tuned"]["outputs"]["model"]["digest"] == made["policy"]["outputs"]["model"]["digest"]


def test_a_training_that_fails_is_a_result_and_only_all_failures_are_an_error(tmp_path):
    made, outcome = run(tmp_path / "some", RECIPE, "stages.tuned.space={learning_rate: [0.01, 0.99]}")
    assert outcome.exit_code == 0
    assert made["tuned"]["metrics"]["failed_trials"] == 0
    text = RECIPE.replace(
        "algorithm: dagger",
        "algorithm: dagger\n    loss_terms: {extra: {use: tests.flows.runs.test_search_run:diverge, above: 0.1}}",
    )
    space = "stages.tuned.space={learning_rate: [0.01, 0.02], loss_terms.extra.above: [0.0, 1.0]}"
    made, outcome = run(tmp_path / "failing", text, space, "stages.tuned.seed=4")
    trials = made["tuned"]["details"]["search"]["trials"]
    failed = [trial for trial in trials if trial["value"] is None]
    assert 0 < len(failed) < 4
    assert all(
        "not finite" in trial["error"] and trial["settings"]["loss_terms.extra.above"] == 0.0 for trial in failed
    )


def diverge(batch, *, above: float = 1.0):
    """A term that is infinite where `above` is 0."""
    return batch["observation"].sum() * 0 + (float("inf") if above == 0 else 0.0)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_and_values_give_the_same_settings(sampler):
    from learning.search import samplers

    space = {"a": {"low": 1e-4, "high": 1.0, "log": True}, "b": {"low": 1, "high": 9}, "c": ["x", "y"]}
    stage = Search.model_validate({"kind": "search", "train": "t", "evaluate": "e", "metric": "m", "space": space})

    def draw(seed):
        study, drawn = Study(stage, getattr(samplers, sampler)(seed)), []
        for _ in range(12):
            drawn.append(study.ask().settings)
            study.tell(-abs(np.log(drawn[-1]["a"]) + 5) if drawn[-1]["c"] == "x" else None)
        return drawn

    first = draw(3)
    assert first == draw(3) != draw(4)
    assert all(1e-4 <= one["a"] <= 1 and one["b"] in range(1, 10) for one in first)


def test_the_estimator_moves_towards_what_was_good():
    """A peak at a = 0.01: the last third of 30 trials is nearer to it than as many draws at random."""
    from learning.search import samplers

    stage = Search.model_validate(
        {
            "kind": "search",
            "train": "t",
            "evaluate": "e",
            "metric": "m",
            "space": {"a": {"low": 1e-6, "high": 1.0, "log": True}},
        }
    )

    def measure(sampler):
        study, distances = Study(stage, sampler), []
        for _ in range(30):
            distances.append(abs(np.log10(study.ask().settings["a"]) + 2))
            study.tell(-distances[-1])
        return np.mean(distances[20:])

    guided = [measure(samplers.tpe(seed)) for seed in range(3)]
    drawn = [measure(samplers.random(seed)) for seed in range(3)]
    assert max(guided) < min(drawn)


LANGUAGE = """\
name: added
seed: 1
defaults:
  init:
    config:
      model_type: qwen3
      hidden_size: 32
      intermediate_size: 32
      num_hidden_layers: 1
      num_attention_heads: 2
      num_key_value_heads: 2
      head_dim: 16
stages:
  base: {kind: init}
  rows:
    kind: synthesize
    teacher: {use: answer}
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 40, style: short}]
  policy: {kind: sft, model: base, data: rows, max_steps: 8, learning_rate: 1.0e-6}
  validation:
    kind: evaluate
    models: {policy: policy}
    tasks: [{use: reasoning_gym, family: chain_sum, split: train, size: 9, seed: 7, style: short}]
    max_completion_length: 8
    temperature: 1.0
    num_generations: 4
    num_bootstrap: 100
    rewards: ["tests.flows.runs.test_search_run:count_digits"]
    threshold: 1.0
  tuned:
    kind: search
    train: policy
    evaluate: validation
    metric: accuracy
    space: {learning_rate: {low: 1.0e-2, high: 0.3, log: true}, per_device_train_batch_size: [4, 8]}
    trials: 3
"""


def count_digits(completions):
    """A reward that a hardly trained model can earn: an odd number of digits in the completion."""
    return [float(sum(letter.isdigit() for letter in text) % 2) for text in completions]


def test_a_language_model_is_searched_by_the_same_kind(tmp_path):
    made, outcome = run(tmp_path, LANGUAGE)
    assert outcome.exit_code == 0, {n: s.reason for n, s in outcome.states.items()}
    search = made["tuned"]["details"]["search"]
    values = [trial["value"] for trial in search["trials"]]
    assert max([*values, search["baseline"]]) == made["tuned"]["metrics"]["accuracy"]
    assert made["tuned"]["outputs"]["model"]["type"] == "policy"
    assert len(set(values)) > 1
    assert made["tuned"]["tokens"] > 3 * made["validation"]["tokens"]


def test_the_shipped_recipe_runs_small_and_its_report_has_every_trial(tmp_path):
    layout, printed = Layout(tmp_path), io.StringIO()
    plan = plan_recipe(ROOT / "recipes/search.yaml", layout, tiny=True)
    outcome = start_run(plan, layout, "inprocess", Console(file=printed, width=200))
    assert outcome.exit_code == 0, printed.getvalue()
    report = next((tmp_path / ".posttrain/runs").glob("*/report.html")).read_text()
    assert "Search · tuned" in report
    assert report.count("<tr><td>own settings") + report.count("<tr><td><b>own settings") == 1
    assert "loss.gamma" in report
