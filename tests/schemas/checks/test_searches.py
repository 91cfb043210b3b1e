"""What validation copies into a search, and what it refuses, by the place in the recipe."""

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from schemas.search_space import Range, is_whole, replace_setting

RECIPE = """\
seed: 1
stages:
  rows: {kind: collect, env: Pendulum-v1, policy: random, environment_steps: 100}
  policy:
    kind: control
    env: Pendulum-v1
    algorithm: td3_bc
    loss: {use: td3_bc, alpha: 2.0}
    data: [rows]
    max_steps: 10
    retries: 2
  validation: {kind: evaluate_control, seed: 2, env: Pendulum-v1, models: {base: policy, other: path:./model}}
  tuned:
    kind: search
    train: policy
    evaluate: validation
    metric: mean_return
    space: {learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}, loss.alpha: [1.0, 2.5], batch_size: [32, 64]}
    trials: 3
  report: {kind: evaluate_control, seed: 3, env: Pendulum-v1, models: {policy: policy, tuned: tuned}}
"""


def load(tmp_path, *overrides, text=RECIPE):
    (tmp_path / "recipe.yaml").write_text(text)
    return load_recipe(tmp_path / "recipe.yaml", overrides=overrides)


def test_a_search_has_the_two_stages_with_their_inputs_and_code(tmp_path):
    recipe = load(tmp_path)
    stage = recipe.stages["tuned"]
    assert (stage.trained.loss.options, stage.trained.retries) == ({"alpha": 2.0}, 0)
    assert dict(stage.evaluated.models) == {"base": "policy"}
    assert (stage.trained.seed, stage.evaluated.seed) == (1, 2)
    assert load(tmp_path, "stages.tuned.seed=9").stages["tuned"].trained.seed == 1
    assert {port.path: port.steps for port in recipe.ports("tuned")} == {
        "train": ("policy",),
        "evaluate": ("validation",),
        "trained.data.0": ("rows",),
        "evaluated.models.base": ("policy",),
    }
    assert recipe.outputs("tuned") == {"model": "control_policy", "trials": "directory"}
    code = set(recipe.code("tuned"))
    assert {("tasks.control", "run"), ("tasks.evaluate_control", "run")} <= code
    assert {("learning.control.losses.standard", "td3_bc"), ("learning.search.samplers", "tpe")} <= code
    assert recipe.settings("tuned")["trained"]["loss"] == {**recipe.settings("policy")["loss"], "alpha": 2.0}


@pytest.mark.parametrize(
    ("override", "place", "message"),
    [
        ("space={learning_rte: [1.0, 2.0]}", "space.learning_rte", "`policy` has no setting `learning_rte`"),
        ("space={loss.beta: [1.0, 2.0]}", "space.loss.beta", "`policy` has no setting `loss.beta`"),
        ("space={loss.alpha: {low: -1.0, high: 2.0}}", "space.loss.alpha", "refuses loss.alpha -1.0: "),
        ("space={batch_size: [8, many]}", "space.batch_size", "`policy` refuses batch_size many"),
        ("space={max_steps: [0, 5]}", "space.max_steps", "`policy` refuses max_steps 0"),
        ("space={loss.use: [td3, sac]}", "space.loss.use", "`loss.use` cannot be searched"),
        ("space={env: [a, b]}", "space.env", "`env` cannot be searched"),
        ("space={batch_size: [8, 8]}", "", "fewer than two values"),
        ("space={learning_rate: {low: 0.0, high: 0.1, log: true}}", "space.learning_rate", "must be positive"),
        ("space={learning_rate: {low: 0.2, high: 0.1}}", "space.learning_rate", "`low` must be less than `high`"),
        ("metric=accuracy", "metric", "`validation` has no metric `accuracy`"),
        ("train=rows", "train", "wants policy or adapter or control_policy"),
        ("evaluate=policy", "evaluate", "wants eval_report"),
        ("evaluate=report", "evaluate", "a cycle"),
        ("sampler=tpa", "sampler", "`tpa`"),
        ("seeds=[3, 3]", "", "`seeds` lists a seed twice"),
        ("test_seeds=[1, 5]", "test_seeds", "the seed of `policy`, which chooses"),
        ("max_environment_steps=100", "max_environment_steps", "`policy` is trained offline"),
        (
            "sampler={use: by_hand, settings: [{batch_size: many}]}",
            "sampler.settings.0.batch_size",
            "`policy` refuses batch_size many",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_where_it_is_written(override, place, message, tmp_path):
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, f"stages.tuned.{override}")
    problem = caught.value.problems[0]
    assert message in problem.message, caught.value.problems
    assert problem.path.startswith(f"stages.tuned.{place}".rstrip("."))


def test_a_seed_that_chooses_and_tests_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="seeds that choose, too: 5"):
        load(tmp_path, "stages.tuned.seeds=[4, 5]", "stages.tuned.test_seeds=[5, 6]")
    stage = load(tmp_path, "stages.tuned.seeds=[4, 5]", "stages.tuned.test_seeds=[1, 6]").stages["tuned"]
    assert (stage.seeds, stage.test_seeds) == ([4, 5], [1, 6])


@pytest.mark.parametrize("setting", ["sampler=pbt", "sampler=dehb", "max_environment_steps=9"])
def test_only_control_has_steps_that_are_shared_out(setting, tmp_path):
    with pytest.raises(RecipeError, match="of kind sft, whose steps are not shared out"):
        load(tmp_path, f"stages.tuned.{setting}", text=LANGUAGE)


@pytest.mark.parametrize("seed", ["2", None])
def test_starts_of_another_evaluation_are_refused(seed, tmp_path):
    """Two evaluations without a seed of their own play the same starts, too."""
    text = RECIPE if seed else RECIPE.replace("seed: 2, ", "").replace("seed: 3, ", "")
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, *([f"stages.report.seed={seed}"] if seed else []), text=text)
    assert "`report` plays the same starts as `validation`" in caught.value.problems[0].message
    assert load(tmp_path, "stages.report.seed=2", "stages.report.env=MountainCar-v0")


def test_an_evaluation_of_other_models_and_a_matrix_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="`validation` does not evaluate `policy`"):
        load(tmp_path, "stages.validation.models={base: 'path:./model'}")
    text = RECIPE.replace("    retries: 2\n", "    matrix: {seed: [1, 2]}\n    seed: ${matrix.seed}\n")
    with pytest.raises(RecipeError, match=r"policy@seed=1"):
        load(tmp_path, text=text)


LANGUAGE = """\
stages:
  base: {kind: init}
  rows:
    kind: synthesize
    teacher: {use: answer}
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 8, style: short}]
  policy: {kind: sft, model: base, data: rows, max_steps: 2}
  validation:
    kind: evaluate
    models: {policy: policy}
    tasks: [{use: reasoning_gym, family: chain_sum, split: train, size: 9, seed: 7}]
  tuned:
    kind: search
    train: policy
    evaluate: validation
    metric: accuracy
    space: {learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}}
  report:
    kind: evaluate
    models: {policy: policy, tuned: tuned}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 4}]
"""


def test_a_language_model_is_searched_with_the_rate_that_its_stage_would_have(tmp_path):
    recipe = load(tmp_path, text=LANGUAGE)
    stage = recipe.stages["tuned"]
    assert stage.trained.learning_rate == recipe.stages["policy"].learning_rate > 0
    assert recipe.outputs("tuned")["model"] == "policy"
    assert {port.path for port in recipe.ports("tuned")} >= {"trained.model", "trained.data", "evaluated.models.policy"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tasks.0.split=test", "`split: test` is a test split, by which nothing may be chosen"),
        ("tasks=[{use: reasoning_gym, family: chain_sum, split: test, size: 4}]", "test split"),
    ],
)
def test_test_problems_choose_nothing(override, message, tmp_path):
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, f"stages.validation.{override}", text=LANGUAGE)
    assert message in caught.value.problems[0].message
    with pytest.raises(RecipeError, match="these are the problems of the evaluation `report`"):
        load(tmp_path, text=LANGUAGE.replace("split: test, size: 4", "split: train, size: 9, seed: 7"))


def test_settings_are_replaced_by_path_and_nothing_is_added():
    settings = {"a": {"b": 1}, "c": [1]}
    assert replace_setting(settings, "a.b", 2) == {"a": {"b": 2}, "c": [1]}
    assert settings == {"a": {"b": 1}, "c": [1]}
    for path in ("a.x", "x", "c.0", "a.b.c"):
        with pytest.raises(KeyError):
            replace_setting(settings, path, 2)
    assert is_whole(Range(low=1, high=3))
    assert not is_whole(Range(low=1, high=3.5))
