"""`--profile own`: a paper's method on a user's own model and problems, with a BPE tokenizer and a chat template."""

import re
from pathlib import Path

import pytest
import yaml

from flows.planning.data_sources import find_source_problems
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from schemas.source.extend import read_recipe
from tests.bpe_checkpoint import write_bpe_checkpoint
from tests.papers.mutation import is_control
from tests.papers.own_data import UNTAUGHT, WORLDS, list_overrides, list_small_sizes, list_turns, write_files

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "papers").glob("*.yaml"))
OWN = [path for path in RECIPES if (profiles := read_recipe(path).get("profiles")) and profiles.get("own")]
CONTROL = [path for path in OWN if is_control(path.stem)]
LANGUAGE = [path for path in OWN if path not in CONTROL]
METHOD = (
    *("advantage", "advantage_shaping", "ratio", "loss_aggregation", "loss_terms", "token_mask", "filter_groups"),
    *(
        "resample",
        "prompt_sampler",
        "reward_shaping",
        "importance_correction",
        "controllers",
        "references",
        "policy_loss",
    ),
    *("logits_processors", "num_iterations", "num_mini_batches", "generation_batch_size", "num_generations"),
)
"""Settings of an rl stage that are the method, not the problems, the model or the room for a completion."""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """A folder with a checkpoint of a BPE tokenizer and a chat template, and files in columns of their own."""
    folder = tmp_path_factory.mktemp("mine")
    write_files(folder)
    write_bpe_checkpoint(folder, list_turns())
    return folder


def bring(path, folder):
    """What a user gives: a value for each variable of the profile that has none."""
    return list_overrides(path.stem, folder, f"path:{folder}/model")


def describe_method(stage):
    """The settings of a stage that are the method; the name of a controller's number and the room for texts are not."""
    settings = stage.model_dump(include=set(METHOD))
    for controller in (settings.get("controllers") or {}).values():
        for name in ("objective", "best"):
            controller.pop(name, None)
    for option in ("max_completion_length", "instructions", "proposer", "verify"):  # texts and rewards are the user's
        (settings.get("prompt_sampler") or {}).pop(option, None)
    return settings


OPTIONS_OF_USER = ("expert", "when", "by", "weights", "most", "costs", "caption", "annotator", "goal", "latency")


@pytest.mark.parametrize("path", CONTROL, ids=lambda path: path.stem)
def test_every_world_is_the_users_and_the_method_is_the_shipped_one(path, mine):
    own, shipped = load_recipe(path, profile="own", overrides=bring(path, mine)), load_recipe(path)
    kinds = {name: stage.kind for name, stage in own.stages.items()}
    assert {kinds[name] for name in kinds} >= {"control", "evaluate_control"}
    acting = [own.stages[name] for name, kind in kinds.items() if kind not in ("rl", "evaluate")]
    worlds = [use for stage in acting if getattr(stage, "env", None) for use in list_worlds(stage.env)]
    assert set(worlds) == {WORLDS[path.stem]}
    variables = read_recipe(path, "own").get("vars")
    of_user = {"env", "learning_rate"} if variables and "learning_rate" in variables.value else {"env"}
    for name in (name for name, kind in kinds.items() if kind == "control"):
        ours, theirs = (recipe.stages[name].model_dump(exclude=of_user) for recipe in (own, shipped))
        for slot in ("exploration", "relabel", "segment_reward"):  # experts, rules when they act, raters are the user's
            for settings in (ours[slot], theirs[slot]):
                for option in OPTIONS_OF_USER if settings else ():
                    settings.pop(option, None)
        for settings in (ours["teacher"] or {}, theirs["teacher"] or {}):  # what an expert knows of tasks
            for option in ("easiest", "hardest", "mastered"):
                settings.pop(option, None)
        for settings in (ours["networks"], theirs["networks"]):  # how much critics alone see
            settings.pop("privileged")
        for settings in (ours["loss"], theirs["loss"]):  # an episode's steps, a state's factors, what rates an episode
            settings.pop("horizon", None)
            settings.pop("heuristic", None)
            settings.pop("rater", None)
            settings.pop("weights", None)
            settings.pop("most", None)
            if isinstance(settings.get("experience"), dict):
                settings["experience"].pop("factors", None)
        assert ours == theirs


def list_worlds(use):
    """The functions that make the worlds of a slot: its own, that which it wraps, or those that it chooses from."""
    if "world" in use.options:
        return [one if isinstance(one := use.options["world"], str) else one["use"]]
    return (
        [one if isinstance(one, str) else one["use"] for one in use.options["worlds"]]
        if use.use in ("one_of", "any_of", "nth_of")
        else [use.use]
    )


@pytest.mark.parametrize("path", LANGUAGE, ids=lambda path: path.stem)
def test_what_is_left_is_the_method_and_nothing_of_the_toy(path, mine):
    recipe = load_recipe(path, profile="own", overrides=bring(path, mine))
    kinds = {name: stage.kind for name, stage in recipe.stages.items()}
    code = {module for name in kinds for module, _ in recipe.code(name)}
    assert not [module for module in code if module.startswith(("learning.toy_tasks", "learning.reasoning_gym"))]
    assert "init" not in kinds.values()
    shipped = load_recipe(path)
    methods = {
        name for name, kind in kinds.items() if kind in ("rl", "preference", "merge", "practice", "action_values")
    }
    assert methods >= {name for name, kind in kinds.items() if kind == "rl"}
    assert {name for name, stage in shipped.stages.items() if stage.kind == "rl" and "@" not in name} <= methods
    for name in methods:
        if kinds[name] == "rl" and (path.stem, name) not in OTHER_DATA:
            assert describe_method(recipe.stages[name]) == describe_method(shipped.stages[name])
    begun = {f"path:{mine}/model"} | {f"path:{mine}/{kind}" for kind in ("moe",)}
    for name, kind in kinds.items():
        models = [port for port in recipe.ports(name) if port.path == "model"]
        assert all(port.source in begun or port.steps[0] in kinds for port in models), (name, kind)
    ends = [name for name, kind in kinds.items() if kind == "evaluate"]
    assert all(recipe.stages[name].tasks == [] for name in ends)
    read = find_files(recipe, ends)
    assert read
    assert not read & find_files(recipe, methods)


OTHER_DATA = {("coderl-plus", "trained")}
"""Stages whose method reads the data in another form: real programs are traced by `program_traces`."""


def find_files(recipe, names):
    """The files from which steps read problems, also through a generator that makes them of another step's rows."""
    held = [step for name in names for port in recipe.ports(name) if port.path == "prompts" for step in port.steps]
    generators = [port for one in held for port in recipe.ports(one) if port.path.startswith("problems.")]
    generators = [port for port in generators if not port.path.endswith(".model")]  # a model that solves them
    held += [step for port in generators for step in port.steps]
    return {port.source for one in held for port in recipe.ports(one) if port.source is not None}


def test_a_plan_reads_and_checks_the_files(mine, tmp_path):
    path = RECIPES[0].with_name("xrpo.yaml")
    plan = plan_recipe(path, Layout(tmp_path), profile="own", overrides=bring(path, mine))
    assert {step.name for step in plan.steps} == {"mixture", "baseline", "trained", "report-prompts", "report"}
    wrong = [text.replace('"question"', '"asked"') for text in bring(path, mine)]
    problems = list(find_source_problems(load_recipe(path, profile="own", overrides=wrong), Layout(tmp_path)))
    assert problems
    assert all("no column `asked`" in problem.message for problem in problems)


def test_a_recipe_that_does_not_support_it_refuses_it(tmp_path):
    """`own: null` takes away what a recipe inherits."""
    (tmp_path / "mine.yaml").write_text(
        f"extends: {RECIPES[0].parents[1] / 'bases' / 'chain_sum.yaml'}\nprofiles: {{own: null}}\n"
    )
    with pytest.raises(RecipeError, match="no profile `own`"):
        load_recipe(tmp_path / "mine.yaml", profile="own")


def test_every_row_has_it_and_the_page_names_what_each_wants():
    assert OWN == RECIPES
    page = (RECIPES[0].parents[2] / "docs" / "using-a-paper.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", page, re.MULTILINE))
    wanted = {path.stem: list_asked(path) - {"model", "prompts", "held_out"} for path in RECIPES}
    assert {row: set(re.findall(r"`vars\.(\w+)`", text)) for row, text in listed.items()} == {
        row: names for row, names in wanted.items() if names
    }


def list_asked(path):
    """The variables of the profile that have no value."""
    return {name for name, value in read_recipe(path, "own").get("vars").plain().items() if value is None}


def test_a_replaced_stage_of_a_profile_stays_replaced_when_another_recipe_extends_it(tmp_path):
    (tmp_path / "base.yaml").write_text("profiles: {own: {stages: {b: {kind: a}}}}\nstages: {a: {kind: a, x: 1}}\n")
    (tmp_path / "mine.yaml").write_text(
        "extends: base.yaml\nprofiles: {own: {stages: {a: {$replace: true, kind: a, y: 2}}}}\n"
    )
    tree = read_recipe(tmp_path / "mine.yaml", "own")
    assert tree.get("stages").plain() == {"a": {"kind": "a", "y": 2}, "b": {"kind": "a"}}


def test_what_is_missing_is_asked_for():
    with pytest.raises(RecipeError) as caught:
        load_recipe(RECIPES[0].with_name("bapo.yaml"), profile="own")
    (problem,) = caught.value.problems
    assert problem.path == "stages.cold_start"
    assert "--set vars.model=path:./model" in problem.advice


def test_a_stage_may_be_a_model_from_outside(tmp_path):
    """All that only prepared the stage in its place is left out, wherever its name is written."""
    recipe = yaml.safe_load((RECIPES[0].with_name("bapo.yaml")).read_text())
    recipe["extends"] = str(RECIPES[0].parents[1] / "bases" / "chain_sum.yaml")
    recipe["stages"]["cold_start"] = "path:./model"
    (tmp_path / "model").mkdir()
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    loaded = load_recipe(tmp_path / "mine.yaml")
    assert list(loaded.stages) == ["exercises", "fixed", "trained", "report"]
    assert {p.source for p in loaded.ports("report") if p.path == "models.cold_start"} == {"path:./model"}
    recipe["stages"]["cold_start"] = "elsewhere"
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(RecipeError, match="`cold_start` needs a model from outside"):
        load_recipe(tmp_path / "mine.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_it_runs(path, mine, tmp_path, monkeypatch):
    """One step of every training stage, on files and a tokenizer that no recipe knows."""
    if path.stem in ("stable-rl-llm", "verirl"):
        pytest.skip("it wants a mixture of experts, or a model that passes some tests of programs")
    monkeypatch.chdir(tmp_path)
    given = bring(path, mine)
    recipe = load_recipe(path, profile="own", overrides=given)
    length = ["vars.length=48"] if "length" in read_recipe(path, "own").get("vars").value else []
    small = [*length, *list_small_sizes(recipe, 2), *UNTAUGHT.get(path.stem, [])]
    plan = plan_recipe(path, Layout(tmp_path), profile="own", overrides=[*given, *small])
    outcome = run_plan(plan, Layout(tmp_path), executor="inprocess", prefect=False)
    assert outcome.exit_code in (0, 2), outcome.states
    ended = {name for name, state in outcome.states.items() if state.state == "skipped" and recipe.unless(name)}
    assert {state.state for name, state in outcome.states.items() if name not in ended} == {"done"}
