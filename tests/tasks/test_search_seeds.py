"""Several seeds of a search: what chooses, what is reported, and what it costs."""

import json

import pytest

from schemas.recipe.load import load_recipe
from tasks import search
from tasks.context import Context
from tasks.search_trials import Trial, Trials, trace

RECIPE = """\
seed: 1
stages:
  policy:
    kind: control
    env: "tests.control_worlds:line"
    algorithm: ppo
    environment_steps: 120
    learning_starts: 1
    learning_rate: 1.0e-4
  validation: {kind: evaluate_control, seed: 2, env: "tests.control_worlds:line", models: {policy: policy}}
  tuned:
    kind: search
    train: policy
    evaluate: validation
    metric: mean_return
    space: {learning_rate: {low: 1.0e-3, high: 1.0e-1, log: true}}
    seeds: [1, 2]
    test_seeds: [7, 8, 9]
"""
TABLE = {(0.01, 1): 0.9, (0.01, 2): 1.1, (0.02, 1): 0.8, (0.02, 2): 0.8}
"""Settings and tuning seeds to values; with other seeds the first settings are worth .2, the second .8, others 0."""


def read_table(rate, seed):
    return TABLE.get((rate, seed), {0.01: 0.2, 0.02: 0.8}.get(rate, 0.0))


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Runs a search whose trainings are looked up; returns the result, all trainings and the step's context."""

    def run(*overrides, name="step", fail_after=None):
        (tmp_path / "recipe.yaml").write_text(RECIPE)
        stage = load_recipe(tmp_path / "recipe.yaml", overrides=overrides).stages["tuned"]
        step = Context({}, tmp_path / name, tmp_path / name / "checkpoints", seed=0)
        step.folder.mkdir(exist_ok=True)
        trained = []

        def run_part(self, part, changed, folder, inputs):
            if part == "trained":
                if fail_after is not None and len(trained) == fail_after:
                    raise KeyboardInterrupt
                settings = {"steps": changed.environment_steps, "from": inputs.get("model")}
                trained.append((round(changed.learning_rate, 6), changed.seed, settings))
                (folder / "outputs/model").mkdir(parents=True)
                (folder / "outputs/model/who").write_text(f"{changed.learning_rate} {changed.seed}")
                return
            rate, seed = next(iter(inputs.values())).joinpath("who").read_text().split()
            trained[-1][2]["starts"] = changed.seed
            value = read_table(float(rate), int(seed))
            table = [{"model": "policy", "metric": "mean_return", "family": "all", "value": value}]
            (folder / "outputs/report").mkdir(parents=True)
            (folder / "outputs/report/results.json").write_text(json.dumps({"table": table}))

        monkeypatch.setattr(Trials, "_run_part", run_part)
        return search.run(stage, step), trained, step

    return run


HAND = "stages.tuned.sampler={use: by_hand, settings: [{learning_rate: 0.02}, {learning_rate: 0.01}]}"


def test_the_mean_over_tuning_seeds_chooses_and_that_over_test_seeds_is_reported(searched):
    """A has 1.0 with the tuning seeds and .2 with the others, B .8 with all: A is chosen, and .2 reported."""
    result, trained, step = searched(HAND)
    assert result.details["search"]["settings"] == {"learning_rate": 0.01}
    assert result.metrics["mean_return"] == pytest.approx(0.2)
    assert result.metrics["chosen_by"] == pytest.approx(1.0)
    assert result.details["search"]["tested"] == {"baseline": [0.0] * 3, "best": [0.2] * 3}
    assert [(rate, seed) for rate, seed, _ in trained] == [
        *[(1e-4, 1), (1e-4, 2), (0.02, 1), (0.02, 2), (0.01, 1), (0.01, 2)],
        *[(1e-4, 7), (1e-4, 8), (1e-4, 9), (0.01, 7), (0.01, 8), (0.01, 9)],
    ]
    assert [how["starts"] for *_, how in trained] == [2] * 6 + [7, 8, 9] * 2
    assert (step.output("model") / "who").read_text() == "0.01 7"
    assert result.metrics["environment_steps"] == 4 * 120
    kept = json.loads((step.output("trials") / "trials.json").read_text())
    assert [line["values"] for line in kept["trials"]] == [[0.8, 0.8], [0.9, 1.1]]


def test_without_test_seeds_the_value_that_chose_is_shown_with_the_first_seeds_model(searched):
    result, _, step = searched(HAND, "stages.tuned.test_seeds=[]")
    assert result.metrics["mean_return"] == pytest.approx(1.0)
    assert "chosen_by" not in result.metrics
    assert (step.output("model") / "who").read_text() == "0.01 1"


def test_the_baseline_is_tested_too_and_stays_where_nothing_is_better(searched):
    result, _, step = searched(
        "stages.policy.learning_rate=0.01", HAND.replace("{learning_rate: 0.01}", "{learning_rate: 0.03}")
    )
    assert result.details["search"]["best"] is None
    assert result.details["search"]["tested"] == {"baseline": [0.2] * 3}
    assert (result.metrics["mean_return"], result.metrics["chosen_by"]) == (pytest.approx(0.2), 1.0)
    assert (step.output("model") / "who").read_text() == "0.01 7"


@pytest.mark.parametrize(
    "sampler", ["random", "{use: pbt, members: 2, generations: 3}", "{use: dehb, members: 3, rungs: 2}"]
)
def test_every_sampler_is_charged_all_steps_of_all_seeds(sampler, searched):
    """480 steps are two whole trials with two seeds, six parts of a population of two, or three thirds and a whole."""
    result, trained, _ = searched(f"stages.tuned.sampler={sampler}", "stages.tuned.max_environment_steps=480")
    tuning = [how["steps"] for _, seed, how in trained[2:] if seed in (1, 2)]
    assert sum(tuning) == result.metrics["environment_steps"] == 480
    assert set(tuning) == {"random": {120}}.get(sampler, {40} if "pbt" in sampler else {40, 120})
    shares = {"random": 2, "pbt": 6, "dehb": 4}
    assert result.metrics["trials"] == next(count for name, count in shares.items() if name in sampler)


def test_parts_go_on_from_the_models_of_the_same_seed_and_are_repeated_with_test_seeds(searched):
    result, trained, step = searched(
        "stages.tuned.sampler={use: pbt, members: 2, generations: 2}", "stages.policy.learning_rate=0.5"
    )
    later = [(seed, how["from"].relative_to(step.checkpoints).parts) for _, seed, how in trained if how["from"]][:4]
    lines = result.details["search"]["trials"]
    assert later == [(s, ("models", str(lines[n]["parent"]), str(s - 1))) for n in (2, 3) for s in (1, 2)]
    assert [line["share"] for line in lines] == [0.5] * 4
    best = result.details["search"]["best"]
    if best is not None:
        assert best >= 2
    tests = [entry for entry in trained if entry[1] == 8]
    assert [how["steps"] for _, _, how in tests] == ([120, 60, 60] if best is not None else [120])


def test_a_search_that_was_stopped_goes_on_and_repeats_no_finished_trial(searched):
    with pytest.raises(KeyboardInterrupt):
        searched(HAND, fail_after=9)
    result, trained, _ = searched(HAND)
    assert [(rate, seed) for rate, seed, _ in trained] == [(1e-4, 9), (0.01, 7), (0.01, 8), (0.01, 9)][-len(trained) :]
    assert result.metrics["mean_return"] == pytest.approx(0.2)


def test_parts_of_a_training_are_those_of_its_parents():
    done = [Trial(0, {"a": 1}, 0.0, "", 0.0, 0.5), Trial(1, {"a": 2}, 0.0, "", 0.0, 0.5, 0)]
    assert [(part.settings, part.share) for part in trace(done[1], done)] == [({"a": 1}, 0.5), ({"a": 2}, 0.5)]
