"""How to tune hyperparameters in RL: seeds that tune are not those that test, and tools are compared at equal steps.

Not shown: which tool wins.
"""

import json
from pathlib import Path

import pytest

from learning.lookup import bind
from learning.search.comparison import compare_searches
from schemas.errors import RecipeError, StepError
from schemas.recipe.load import load_recipe
from tasks import search
from tasks.context import Context
from tasks.search_trials import Trials

PATH = Path(__file__).parents[2] / "recipes/papers/how-to-autorl.yaml"
STAGES = load_recipe(PATH).stages
TOOLS = ("hand", "random", "dehb", "pbt")


@pytest.fixture
def step(tmp_path):
    def step(name, **inputs):
        made = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=1)
        made.folder.mkdir()
        return made

    return step


@pytest.fixture
def run(step, monkeypatch):
    """Runs a search of the recipe on a stored table: `score(stage, seed)` says what a training is worth."""

    def run(name, score=lambda stage, seed: stage.learning_rate, **update):
        trained, made = [], step(name)

        def run_part(self, part, changed, folder, inputs):
            if part == "trained":
                trained.append(changed)
                (folder / "outputs/model").mkdir(parents=True)
                (folder / "outputs/model/value").write_text(str(score(changed, changed.seed)))
                return
            value = float((next(iter(inputs.values())) / "value").read_text())
            label = next(iter(changed.models))
            table = [{"model": label, "metric": "mean_return", "family": "all", "value": value}]
            (folder / "outputs/report").mkdir(parents=True)
            (folder / "outputs/report/results.json").write_text(json.dumps({"table": table}))

        monkeypatch.setattr(Trials, "_run_part", run_part)
        return search.run(STAGES[name].model_copy(update=update), made), trained, made

    return run


@pytest.mark.parametrize("tool", [*TOOLS, "dqn_random"])
def test_seeds_that_tune_do_not_test(tool):
    stage = STAGES[tool]
    assert len(stage.seeds) == len(stage.test_seeds) == 2
    assert not set(stage.seeds) & set(stage.test_seeds)
    with pytest.raises(RecipeError, match="`test_seeds` has seeds that choose, too: 2"):
        load_recipe(PATH, overrides=(f"stages.{tool}.test_seeds=[2, 11]",))


def test_what_tuned_is_chosen_and_what_was_tested_is_reported(run):
    """A is worth 1.0 with the tuning seeds and .2 with others, B .8 with all; both are better than the start."""
    first, second, *others = STAGES["hand"].sampler.options["settings"]

    def score(stage, seed):
        if stage.learning_rate == second["learning_rate"]:
            return 1.0 if seed in (1, 2) else 0.2
        return 0.0 if stage.learning_rate == first["learning_rate"] else 0.8

    result, *_ = run("hand", score)
    assert result.details["search"]["settings"] == second
    assert result.details["search"]["tested"] == {"baseline": [0, 0], "best": [0.2, 0.2]}
    assert (result.metrics["mean_return"], result.metrics["chosen_by"]) == (0.2, 1.0)
    assert all(given.keys() == first.keys() == STAGES["hand"].space.keys() for given in others)


def test_all_tools_take_the_same_environment_steps(run, step):
    """16,384 each: four whole trainings by two seeds, or four halves and two wholes, or eight parts of four members."""
    folders = {}
    for tool in TOOLS:
        result, trained, made = run(tool)
        tuning = [stage.environment_steps for stage in trained[2:] if stage.seed in (1, 2)]
        assert sum(tuning) == result.metrics["environment_steps"] == 16384, tool
        assert sorted(tuning) == {"dehb": [1024] * 8 + [2048] * 4, "pbt": [1024] * 16}.get(tool, [2048] * 8)
        folders[tool] = made.output("trials")
    compared = step("table", **folders)
    metrics = bind(STAGES["table"].function)(compared)
    assert set(metrics) == {f"{what}.{tool}" for what in ("tested", "chosen_by") for tool in TOOLS}
    assert metrics["tested.hand"] == metrics["chosen_by.hand"] == 0.1
    lines = json.loads((compared.output("result") / "table.json").read_text())
    assert {line["environment_steps"] for line in lines} == {16384}
    assert [line["trials"] for line in lines] == [6, 4, 8, 4]


def test_members_of_a_population_go_on_and_the_chosen_one_is_trained_in_the_same_parts(run):
    result, trained, _ = run("pbt")
    record = result.details["search"]
    assert [line["parent"] is not None for line in record["trials"]] == [False] * 4 + [True] * 4
    assert record["best"] >= 4
    tested = [stage for stage in trained if stage.seed == 11]
    assert [stage.environment_steps for stage in tested] == [2048, 1024, 1024]
    last = record["trials"][record["best"]]
    parts = [record["trials"][last["parent"]]["settings"], last["settings"]]
    assert [stage.learning_rate for stage in tested[1:]] == [part["learning_rate"] for part in parts]
    assert [stage.model for stage in tested] == [None, None, "policy"]


def test_only_trials_with_all_steps_are_chosen_from(run):
    """A half that is worth more than every whole training is not the result."""
    result, *_ = run("dehb", lambda stage, seed: 9.0 if stage.environment_steps == 1024 else stage.learning_rate)
    record = result.details["search"]
    assert record["trials"][record["best"]]["share"] == 1
    assert result.metrics["chosen_by"] < 1


def test_searches_of_other_cost_or_seeds_are_not_compared(run, step):
    folders = {tool: run(tool)[2].output("trials") for tool in ("hand", "random")}
    record = json.loads((folders["random"] / "trials.json").read_text())
    for change, message in (
        ({"environment_steps": 16384 + 4096}, "differ by a trial or more: hand 16384, random 20480"),
        ({"test_seeds": [5, 6]}, "differ in metric or seeds"),
        ({"tested": {}}, "random has no `test_seeds`"),
    ):
        (folders["random"] / "trials.json").write_text(json.dumps({**record, **change}))
        with pytest.raises(StepError, match=message):
            compare_searches(step(message[:9] + str(len(message)), **folders))
    (folders["random"] / "trials.json").unlink()
    with pytest.raises(StepError, match=r"name `SEARCH\.trials`"):
        compare_searches(step("none", **folders))


def test_the_tools_search_the_same_training_and_space():
    spaces = [STAGES[tool].model_dump(exclude={"sampler"}) for tool in TOOLS]
    assert all(space == spaces[0] for space in spaces)
    assert [STAGES[tool].sampler.use for tool in TOOLS] == ["by_hand", "random", "dehb", "pbt"]
    assert spaces[0]["max_environment_steps"] == 8 * STAGES["policy"].environment_steps
    assert list(STAGES["report"].models) == ["policy", *TOOLS, "dqn_random"]
