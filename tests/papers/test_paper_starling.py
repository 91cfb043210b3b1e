"""STARLING: written games are compiled, solved and refused if they cannot be, and the target is trained on from there.

The writer, the filter and the order of the stages are those of the recipe. Not shown: games of GPT-3, human players.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.data.rows import write_rows
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.text_game.rows import read_game
from learning.text_game.solver import solve
from learning.text_game.written import compile_game, walk_through
from learning.toy_tasks import game_ideas
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "starling.yaml")
STAGES = RECIPE.stages
KEEP = bind(STAGES["good"].filters[0])
GAME = {
    "rooms": {"kitchen": {"east": "hall"}, "hall": {"west": "kitchen", "north": "attic"}, "attic": {"south": "hall"}},
    "doors": [{"between": ["hall", "attic"], "key": "red key"}],
    "holders": {"chest": {"room": "kitchen", "opens": True}, "table": {"room": "kitchen"}},
    "fixtures": {"stove": "kitchen"},
    "items": {"soup": "attic", "red key": "chest"},
    "start": "kitchen",
    "goal": {"item": "soup", "holder": "table", "quality": "hot"},
}
"""Three rooms: the key from the chest opens the attic, whose soup is heated and put on the table."""


def row_of(game):
    text = game if isinstance(game, str) else json.dumps(game)
    return {
        "id": "a",
        "prompt": [{"role": "user", "content": "cook"}],
        "answer": None,
        "family": "idea",
        "metadata": None,
    } | {"completion": [{"role": "assistant", "content": text}]}


def change(**parts):
    return {**json.loads(json.dumps(GAME)), **parts}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What the recipe's writer makes of its ideas, what its filter keeps of that, and the games that these are."""
    ideas, rng = [idea for use in STAGES["ideas"].problems for idea in bind(use)()], np.random.default_rng(0)
    teacher = bind(STAGES["written"].teacher)
    rows = [idea | {"completion": [{"role": "assistant", "content": teacher(idea, rng)}]} for idea in ideas * 4]
    good = [row | {"id": str(place)} for place, row in enumerate(rows) if KEEP(row)]
    folder = tmp_path_factory.mktemp("good")
    write_rows(folder, "chat", good)
    use = STAGES["made"].problems[0]
    return rows, good, bind(use, "problems.0", {"problems.0.data": folder})()


def test_the_walkthrough_of_every_kept_game_scores_the_maximum(kept):
    rows, good, games = kept
    assert 20 < len(good) < len(rows)
    world = build_environment(STAGES["pretrained"].env, {})
    for row, game in zip(good, games, strict=True):
        plan = walk_through(*compile_game(row["completion"][0]["content"]))
        assert plan == solve(*read_game(game))
        episode = world.begin(game, 0)
        outcomes = [episode.step(action) for action in plan]
        assert [(outcome.done, outcome.reward, outcome.ok) for outcome in outcomes] == [
            *[(False, 0.0, True)] * (len(plan) - 1),
            (True, 1.0, True),
        ]
    skills = {json.loads(row["metadata"])["skill"] for row in good}
    assert skills == {"fetch", "wash", "cook"}
    assert all(len(read_game(game)[0].exits) in {1, 2} for game in games)
    assert walk_through(*compile_game(json.dumps(GAME))) == [
        *("open chest", "take red key", "go east", "open north", "go north", "take soup"),
        *("go south", "go west", "heat soup", "put soup in table"),
    ]


def test_a_key_behind_the_door_that_it_opens_is_refused_as_unsolvable():
    locked = change(items={"soup": "attic", "red key": "attic"})
    world, state = compile_game(json.dumps(locked))
    assert solve(world, state) is None
    with pytest.raises(ValueError, match="it cannot be solved in 40 actions"):
        walk_through(world, state)
    assert KEEP(row_of(GAME))
    assert not KEEP(row_of(locked))
    assert not KEEP(
        row_of(change(goal={"item": "soup", "holder": "table"}, items={"soup": "table", "red key": "chest"}))
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps(GAME)[:-1], "Expecting"),
        ("[" * 5_000, "nested too deeply"),
        (json.dumps(GAME) + " " * 9_000, "at most 8000 are read"),
        ("[]", "it is no JSON object"),
        ('{"start": "a", "start": "b"}', "a key is there twice"),
        (change(weather="rain"), "weather: Extra inputs are not permitted"),
        (change(start=7), "start: Input should be a valid string"),
        (change(start="moon"), "moon: there is no such room"),
        (change(start="__class__"), "start: String should match pattern"),
        (change(rooms={"kitchen": {"up": "kitchen"}}), "rooms.kitchen.up"),
        (change(rooms={f"r{'a' * n}": {} for n in range(7)}), "rooms: Dictionary should have at most 6 items"),
        (change(rooms={"kitchen": {"east": "hall"}, "hall": {}, "attic": {}}), "does not lead back by west"),
        (change(rooms={"kitchen": {"east": "kitchen"}}), "does not lead back"),
        (change(doors=[{"between": ["kitchen", "attic"]}]), "there is no passage, or a second door"),
        (change(doors=[{"between": ["hall", "attic"]}] * 2), "or a second door"),
        (change(doors=[{"between": ["hall", "attic"], "key": "blue key"}]), "there is no such key among the items"),
        (change(doors=[{"between": ["hall", "attic"], "key": "soup"}]), "a key has a name such as"),
        (change(items={"soup": "cellar", "red key": "chest"}), "cellar is neither a room nor a holder"),
        (change(items={"soup": "attic", "red key": "chest", "north": "hall"}), "north: this word means something else"),
        (change(items={"soup": "attic", "red key": "chest", "pot in pan": "hall"}), "this word means something else"),
        (change(items={"soup": "attic", "red key": "chest", "hall": "chest"}), "hall: two things have this name"),
        (change(goal={"item": "egg", "holder": "table"}), "goal: its item or its holder"),
        (change(fixtures={}), "nothing becomes hot without a stove"),
        (change(fixtures={"stove": "moon"}), "moon: there is no such room"),
        (change(fixtures={"oven": "hall"}), "fixtures.oven"),
        (change(holders={"chest": {"room": "kitchen", "opens": "yes"}}), "holders.chest.opens"),
    ],
)
def test_a_description_is_read_strictly(text, says):
    text = text if isinstance(text, str) else json.dumps(text)
    with pytest.raises(ValueError, match=says):
        compile_game(text)
    assert not KEEP(row_of(text))


def test_every_flaw_of_the_writer_is_dropped(monkeypatch):
    ideas = bind(STAGES["ideas"].problems[1])()  # of two rooms, between which a door can be
    for flaw in game_ideas.FLAWS:
        monkeypatch.setattr(game_ideas, "FLAWS", (flaw,) * 3)
        monkeypatch.setattr(game_ideas.game_writer, "__kwdefaults__", {"flaws": 1.0, "locks": 0.5, "boxed": 1.0})
        texts = [game_ideas.game_writer(idea, np.random.default_rng(n)) for n, idea in enumerate(ideas)]
        assert not any(KEEP(row_of(text)) for text in texts), flaw
    assert STAGES["written"].teacher.options == {"flaws": 0.3, "locks": 0.0, "boxed": 0.5}


@pytest.mark.parametrize(
    ("rooms", "boxed", "actions"), [(1, 0.0, {2, 3}), (1, 1.0, {3, 4}), (2, 0.0, {4, 5}), (2, 1.0, {5, 6})]
)
def test_one_room_and_items_in_the_open_make_quests_short(rooms, boxed, actions):
    """Take and put, to open a box, to go to the other room and back, and to wash or to heat the item."""
    texts = [
        game_ideas.game_writer(idea, np.random.default_rng(number), boxed=boxed, locks=0.0)
        for number, idea in enumerate(game_ideas.game_ideas(size=12, rooms=rooms))
    ]
    assert {len(walk_through(*compile_game(text))) for text in texts} >= actions
    assert min(len(walk_through(*compile_game(text))) for text in texts) == min(actions)


def test_a_game_of_one_room_is_flawed_without_a_door():
    ideas = game_ideas.game_ideas(size=30, rooms=1)
    texts = [game_ideas.game_writer(idea, np.random.default_rng(n), flaws=1.0) for n, idea in enumerate(ideas)]
    assert not any(KEEP(row_of(text)) for text in texts)


def test_a_row_that_was_not_curated_is_named(tmp_path):
    write_rows(tmp_path, "chat", [row_of(change(start="moon"))])
    use = STAGES["made"].problems[0]
    with pytest.raises(StepError, match=r"row a: moon: there is no such room; drop such rows"):
        bind(use, "problems.0", {"problems.0.data": tmp_path})()


def test_no_target_is_among_the_games_to_train_on(kept):
    _, _, games = kept
    (target,) = bind(STAGES["target"].problems[0])()
    first, others = STAGES["report"].tasks
    tasks = [*bind(first)(), *bind(others.model_copy(update={"size": 8}))()]
    assert target in tasks
    assert json.loads(target["metadata"])["turns"] == 4
    held_out = {row["id"] for row in tasks} | {target["id"]}
    assert not held_out & {game["id"] for game in games}, "ids are hashes of the games"
    assert not {row["prompt"][0]["content"] for row in tasks} & {game["prompt"][0]["content"] for game in games}
    curate = STAGES["games"]
    assert curate.data == "made"
    assert [use.options["split"] for use in curate.decontaminate.against] == ["test", "test"]


def test_the_target_is_learned_from_the_pretraining_or_from_the_start():
    """A step begins with the weights of the artifact that its port `model` names; its key has the key of that step."""
    names = ("pretrained", "transferred", "scratch")
    ports = {name: {port.path: port.steps for port in RECIPE.ports(name)} for name in names}
    assert ports["pretrained"]["model"] == ports["scratch"]["model"] == ("cold_start",)
    assert ports["transferred"]["model"] == ("pretrained",)
    assert ports["pretrained"]["prompts"] == ("games",)
    assert ports["transferred"]["prompts"] == ports["scratch"]["prompts"] == ("target",)


def test_both_have_as_many_iterations_and_the_same_settings():
    dumped = {
        name: STAGES[name].model_dump(exclude={"model", "prompts"}) for name in ("pretrained", "transferred", "scratch")
    }
    steps = {name: settings.pop("max_steps") for name, settings in dumped.items()}
    assert steps["pretrained"] + steps["transferred"] == steps["scratch"]
    assert dumped["pretrained"] == dumped["transferred"] == dumped["scratch"]
    assert STAGES["good"].limit == 24
    assert set(STAGES["report"].models) == {"start", "pretrained", "transferred", "scratch"}
