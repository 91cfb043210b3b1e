"""EnvGen: a model's configuration for the weakest skill, read against bounds, in a mixture with the original world.

Not shown: Crafter and Heist, a real language model.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy
from learning.control.rounds.world_rounds import Mixture, generated, measure_skills, read_config
from learning.control.stepping.spaces import read_spaces
from learning.control.worlds.crafting_grid import PLACE, SKILLS, crafting_grid
from learning.data.rows import read_rows, write_rows
from learning.lookup import Inner, bind
from learning.toy_tasks.world_author import world_author
from schemas.control import NetworkSettings, WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import synthesize
from tasks.context import Context
from tests.security.hostile import hostile

PATH = Path(__file__).parents[2] / "recipes/papers/envgen.yaml"
RECIPE = load_recipe(PATH)
STAGES = RECIPE.stages
FIELDS = STAGES["cycles-1-config"].function.options["fields"]
ORIGINAL = STAGES["cycles-1-config"].function.options["original"]
CONFIG = {"tree_rate": 0.2, "stone_rate": 0.1, "start_wood": 2, "start_table": 0}
RATES = {"wood": 0.75, "table": 0.25, "stone": 0.5}


@pytest.fixture
def step(tmp_path):
    def step(name, **inputs):
        made = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=1)
        made.folder.mkdir(exist_ok=True)
        return made

    return step


def call(name, context, **options):
    """Run the function of a stage of the recipe, with other options."""
    use = STAGES[name].function
    return bind(use.model_copy(update=options) if options else use, "function", context.inputs)(context)


def write_scores(folder, **record):
    folder.mkdir(exist_ok=True)
    (folder / "skills.json").write_text(json.dumps(record))
    return folder


def answer(text):
    return {
        "id": "1",
        "family": "worlds",
        "prompt": [{"role": "user", "content": "?"}],
        "answer": None,
        "metadata": "{}",
        "completion": [{"role": "assistant", "content": text}],
    }


def check(step, scores, text, name="cycles-2-config"):
    """What the recipe makes of an answer."""
    made = step(f"answers-{abs(hash(text))}")
    write_rows(made.output("chat"), "chat", [answer(text)])
    checked = step(f"checked-{abs(hash(text))}", answers=made.output("chat"), scores=scores)
    metrics = call(name, checked)
    return metrics, json.loads((checked.output("result") / "config.json").read_text())


def ask(step, scores, number=2):
    """The only prompt of a cycle."""
    made = step(f"asked-{number}", scores=scores)
    assert call(f"cycles-{number}-request", made) == {"prompts": 1}
    (row,) = read_rows(made.output("prompts"), "prompts")
    return row


def test_the_second_prompt_has_the_rates_and_the_configuration_of_the_first_cycle(step, tmp_path):
    started = step("start")
    call("start", started)
    first = ask(step, started.output("result"), 1)["prompt"][0]["content"]
    row = ask(step, write_scores(tmp_path / "scores", cycle=1, config=CONFIG, rates=RATES))
    text = row["prompt"][0]["content"]
    assert "```json" not in first
    assert f"```json\n{json.dumps(CONFIG)}\n```" in text
    assert f"```json\n{json.dumps(RATES)}\n```" in text
    assert text.index(json.dumps(CONFIG)) < text.index(json.dumps(RATES))
    for shown, cycle in ((first, 1), (text, 2)):
        assert shown.startswith(STAGES["cycles-1-request"].function.options["task"])
        assert "wood, table, stone" in shown
        assert "- tree_rate: a number from 0.0 to 0.5\n" in shown
        assert "- start_wood: a whole number from 0 to 5\n" in shown
        assert shown.endswith(f"Cycle {cycle}.")


@pytest.mark.parametrize(
    ("weakest", "changed"),
    [
        ("wood", {"tree_rate": 0.35}),
        ("table", {"start_wood": 4}),
        ("stone", {"stone_rate": 0.25, "start_table": 1}),
    ],
)
def test_the_next_configuration_changes_what_the_weakest_skill_needs_alone(weakest, changed, step, tmp_path):
    """Raised by .3 of the range: .2 + .15, ceil(2 + 1.5) and .1 + .15."""
    rates = RATES | {weakest: 0.1}
    scores = write_scores(tmp_path / "scores", cycle=1, config=CONFIG, rates=rates)
    teacher = bind(STAGES["cycles-2-answer"].teacher, "teacher")
    text = teacher.ask(0, {"row": ask(step, scores), "rng": np.random.default_rng(0)})
    metrics, record = check(step, scores, text)
    assert metrics == {"refused": 0.0, "calls": 1}
    assert record["config"] == pytest.approx(CONFIG | changed)


def test_the_first_configuration_helps_every_skill(step):
    started = step("start")
    call("start", started)
    teacher = bind(STAGES["cycles-1-answer"].teacher, "teacher")
    asked = ask(step, started.output("result"), 1)
    text = teacher.ask(0, {"row": asked, "rng": np.random.default_rng(0)})
    _, record = check(step, started.output("result"), text, "cycles-1-config")
    assert record["config"] == {"tree_rate": 0.15, "stone_rate": 0.15, "start_wood": 2, "start_table": 1}
    options = STAGES["cycles-1-answer"].teacher.options["helps"]
    wrong = world_author(asked, np.random.default_rng(0), helps=options, error_rate=1.0)
    metrics, record = check(step, started.output("result"), wrong, "cycles-1-config")
    assert metrics["refused"] == 1
    assert record["config"] == ORIGINAL


def test_a_cycle_asks_the_model_once(step):
    started = step("start")
    call("start", started)
    ask(step, started.output("result"), 1)
    asked = step("answered", prompts=step("asked-1").output("prompts"))
    synthesize.run(STAGES["cycles-1-answer"], asked)
    assert len(read_rows(asked.output("chat"), "chat")) == 1


REFUSED = {
    '{"tree_rate": 0.51, "stone_rate": 0.1, "start_wood": 2, "start_table": 0}': "tree_rate is not from 0.0 to 0.5",
    '{"tree_rate": -0.01, "stone_rate": 0.1, "start_wood": 2, "start_table": 0}': "tree_rate is not from 0.0 to 0.5",
    '{"tree_rate": 0.2, "stone_rate": 0.1, "start_wood": 6, "start_table": 0}': "start_wood is not from 0 to 5",
    '{"tree_rate": 0.2, "stone_rate": 0.1, "start_wood": 1.5, "start_table": 0}': "start_wood is no whole number",
    '{"tree_rate": 0.2, "stone_rate": 0.1, "start_wood": 2, "start_table": true}': "start_table is no whole number",
    '{"tree_rate": "0.2", "stone_rate": 0.1, "start_wood": 2, "start_table": 0}': "tree_rate is no number",
    '{"tree_rate": NaN, "stone_rate": 0.1, "start_wood": 2, "start_table": 0}': "NaN is no finite number",
    '{"tree_rate": 0.2, "stone_rate": 0.1, "start_wood": 2}': "its keys are not tree_rate",
    '{"tree_rate": 0.2, "stone_rate": 0.1, "start_wood": 2, "start_table": 0, "x": 9}': "its keys are not tree_rate",
    "[1, 2]": "no JSON object",
    "tree_rate: 0.2": "Expecting value",
    "[" * 3999: "too many brackets|Expecting value",
    " " * 4001: "more than 4000 characters",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_out_of_bounds_is_refused_and_the_configuration_before_is_kept(text, step, tmp_path):
    scores = write_scores(tmp_path / "scores", cycle=1, config=CONFIG, rates=RATES)
    with pytest.raises(ValueError, match=REFUSED[text]):
        read_config(text, FIELDS)
    metrics, record = check(step, scores, text)
    assert metrics == {"refused": 1.0, "calls": 1}
    assert record["config"] == CONFIG
    assert record["refused"]


def test_hostile_answers_are_refused(tmp_path):
    texts = hostile(str(tmp_path / "canary"))
    refused = 0
    for text in texts:
        try:
            read_config(text, FIELDS)
        except ValueError:
            refused += 1
    assert refused == len(texts) > 100
    assert not (tmp_path / "canary").exists()


def test_numbers_at_their_bounds_are_taken_from_the_last_fence():
    highest = {name: high for name, (_, high) in FIELDS.items()}
    lowest = {name: low for name, (low, _) in FIELDS.items()}
    text = f"First:\n```json\n{json.dumps(lowest)}\n```\nBetter:\n```json\n{json.dumps(highest)}\n```\nGood luck!"
    assert read_config(text, FIELDS) == highest
    assert read_config(json.dumps(dict(reversed(lowest.items()))), FIELDS) == lowest


def test_an_original_configuration_out_of_bounds_is_an_error(step, tmp_path):
    scores = write_scores(tmp_path / "scores", cycle=0)
    made = step("chat")
    write_rows(made.output("chat"), "chat", [answer("?")])
    wrong = step("wrong", answers=made.output("chat"), scores=scores)
    with pytest.raises(StepError, match="the original configuration: start_wood is not from 0 to 5"):
        call("cycles-1-config", wrong, original=ORIGINAL | {"start_wood": 9})


def test_episodes_are_those_of_the_original_world_or_of_the_configured_one(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"config": CONFIG | {"start_wood": 5}}))
    use = STAGES["cycles-2-policy"].env
    world = bind(use.model_copy(update={"config": str(tmp_path)}), "env", {"env.config": tmp_path})()
    assert isinstance(world, Mixture)
    starts = []
    for seed in range(400):
        world.reset(seed=seed)
        starts.append((world.world.start[0], world.world.rates))
    assert {start for start, _ in starts} == {0, 5}
    assert {rates for _, rates in starts} == {(0.06, 0.04), (0.2, 0.1)}
    assert np.mean([start == 5 for start, _ in starts]) == pytest.approx(0.5, abs=0.08)
    inner = Inner(bind(WorldUse.model_validate({"use": "crafting_grid", "size": 5}), "env"), 0, {})
    only = generated(world=inner, config=str(tmp_path), share=1.0)
    only.reset(seed=0)
    assert (only.world.start, only.world.size) == ((5, 0), 5)
    (tmp_path / "config.json").write_text(json.dumps({"config": {"colour": 1}}))
    with pytest.raises(StepError, match="crafting_grid does not take colour"):
        generated(world=inner, config=str(tmp_path))


def test_skills_of_the_grid_need_each_other():
    """In a full wood: two trees, a table, no second one; a stone bars the way until there is a table."""
    world = crafting_grid(tree_rate=1.0, stone_rate=0.0, size=5, limit=8)
    shown, info = world.reset(seed=0)
    assert shown.tolist() == pytest.approx([-0.2, 0, 1, 0, 0, 0, 0, 0])
    assert info == {"achievements": {"wood": 0, "table": 0, "stone": 0}}
    assert world.step(PLACE)[1] == 0.0
    assert [world.step(action)[1] for action in (0, 0, 0)] == [1.0, 0.0, 0.0]  # up twice, then the border
    assert world.wood == 2
    shown, earned, *_, info = world.step(PLACE)
    assert (earned, world.wood, shown[-1], info["achievements"]) == (1.0, 0, 1.0, {"wood": 2, "table": 1, "stone": 0})
    world.trees[0, 1] = False
    world.stones[0, 1] = world.stones[0, 3] = True
    world.wood, world.has_table = 1, False
    assert world.step(2)[1] == 0.0
    assert world.cell == (0, 2)
    world.has_table = True
    _, earned, ended, cut, info = world.step(2)
    assert (earned, world.cell, info["achievements"]["stone"]) == (1.0, (0, 1), 1)
    assert (ended, cut) == (False, False)
    assert world.step(PLACE)[2:4] == (False, True)
    rich = crafting_grid(start_wood=3, start_table=1)
    assert rich.reset(seed=0)[0][-2:].tolist() == [1.5, 1.0]
    counts = np.mean([[world.trees.mean(), world.stones.mean()] for world in draw(300)], axis=0)
    assert counts == pytest.approx([0.06, 0.04], abs=0.006)


def draw(count):
    """The original world at its starts."""
    world = bind(STAGES["base"].env, "env")()
    for seed in range(count):
        world.reset(seed=seed)
        yield world


def test_skills_are_measured_in_the_original_world_with_the_configuration_beside(step, tmp_path):
    """A policy that only places tables has one in every episode that begins with wood, and nothing else."""
    world = crafting_grid()
    networks = Networks(read_spaces(world), NetworkSettings(hidden_sizes=[]))
    actor = networks.make_stochastic_actor()
    for parameter in actor.parameters():
        parameter.data.zero_()
        if parameter.ndim == 1:
            parameter.data[PLACE] = 50.0
    (folder := tmp_path / "policy").mkdir()
    ControlPolicy(networks.spaces, networks.settings, "make_stochastic_actor", actor).save(folder, {})
    (made := tmp_path / "made").mkdir()
    (made / "config.json").write_text(json.dumps({"config": CONFIG, "refused": None}))
    scores = write_scores(tmp_path / "scores", cycle=2, config=ORIGINAL, rates=RATES)
    measured = step("measured", policy=folder, config=made, scores=scores)
    assert call("cycles-3-skills", measured, episodes=3) == {"rate_wood": 0.0, "rate_table": 0.0, "rate_stone": 0.0}
    record = json.loads((measured.output("result") / "skills.json").read_text())
    assert record == {"cycle": 3, "rates": dict.fromkeys(SKILLS, 0.0), "config": CONFIG}
    rich = {"use": "crafting_grid", "start_wood": 2}
    assert call("plain_skills", step("rich", policy=folder), world=rich, episodes=3)["rate_table"] == 1.0
    with pytest.raises(StepError, match="no `achievements` of gold"):
        call("plain_skills", step("gold", policy=folder), skills=["gold"], episodes=1)
    assert measure_skills.__name__ in STAGES["plain_skills"].function.use


@pytest.mark.parametrize("steps", [512, 100_000])
def test_there_are_four_calls_at_any_budget_and_both_arms_cost_the_same(steps):
    stages = load_recipe(PATH, overrides=[f"vars.steps={steps}"]).stages
    calls = [stage for stage in stages.values() if stage.kind == "synthesize"]
    assert len(calls) == 4
    for number in range(1, 5):
        adapted, plain = (stages[f"{arm}-{number}-policy"].model_dump() for arm in ("cycles", "plain"))
        assert adapted.pop("env")["share"] == 0.5
        assert plain.pop("env") == stages["base"].model_dump()["env"]
        before = [arm.pop("model") for arm in (adapted, plain)]
        assert before[0].replace("cycles", "plain") == before[1]
        assert adapted == plain
        assert plain["environment_steps"] == steps


def test_a_cycle_reads_the_one_before_and_the_report_is_in_the_original_world():
    ports = {port.path: port.steps for port in RECIPE.ports("cycles-3-request")}
    assert ports == {"inputs.scores": ("cycles-2-skills",)}
    ports = {port.path: port.steps for port in RECIPE.ports("cycles-3-policy")}
    assert ports == {"model": ("cycles-2-policy",), "env.config": ("cycles-3-config",)}
    ports = {port.path: port.steps for port in RECIPE.ports("cycles-3-skills")}
    assert ports["inputs.policy"] == ("cycles-3-policy",)
    firsts = [{port.path: port.steps for port in RECIPE.ports(f"{arm}-1-policy")} for arm in ("cycles", "plain")]
    assert firsts[0]["model"] == firsts[1]["model"] == ("base",)
    assert STAGES["report"].env == STAGES["base"].env == STAGES["cycles-1-skills"].function.options["world"] or (
        STAGES["report"].env.use == STAGES["cycles-1-skills"].function.options["world"]
    )
    assert STAGES["report"].env.use == "crafting_grid"
    assert dict(STAGES["report"].models)["adapted"] == "cycles.policy"
    defaults = {name: crafting_grid.__kwdefaults__[name] for name in ORIGINAL}
    assert defaults == ORIGINAL
