"""TextWorld: its generator's games, its own environment beside ours, a game by hand, what is seen and refused."""

import json
import random
import re
import sys

import numpy as np
import pytest
import textworld
from textworld.envs.tw import TextWorldEnv
from textworld.generator.game import Event, Quest

from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Savable
from learning.environments.textworld import REFUSED
from learning.lookup import bind
from learning.problems.textworld_games import textworld_games
from learning.teachers.textworld import textworld_expert
from learning.text_game.textworld import SHOWN, read_game
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse, TeacherUse


def build(**options):
    return build_environment(EnvUse.model_validate({"use": "textworld", **options}), {})


@pytest.fixture(scope="module")
def rows():
    return textworld_games(size=6, split="train", quest=[2, 4], rooms=3, objects=5)


@pytest.fixture(scope="module")
def pantry():
    """A game by hand: a key on a table, a locked chest with a pie, a closed door to the west."""
    maker = textworld.GameMaker()
    kitchen, garden = maker.new_room("kitchen"), maker.new_room("garden")
    maker.set_player(kitchen)
    maker.connect(kitchen.west, garden.east)
    maker.new_door(maker.connect(kitchen.north, (cellar := maker.new_room("cellar")).south), name="oak door")
    table, chest = maker.new(type="s", name="table"), maker.new(type="c", name="chest")
    key, pie = maker.new(type="k", name="brass key"), maker.new(type="f", name="pie")
    kitchen.add(table, chest)
    table.add(key)
    chest.add(pie)
    chest.add_property("locked")
    maker.add_fact("match", key, chest)
    maker.paths[1].door.add_property("closed")
    assert cellar.name == "cellar"
    done = Event(conditions={maker.new_fact("in", pie, maker.inventory)})
    maker.quests = [Quest(win_events=[done], fail_events=[])]
    text = json.dumps({"textworld": json.dumps(maker.build().serialize())})
    return {"id": "pantry", "prompt": [{"role": "user", "content": "Take the pie."}], "metadata": text}


def solve(world, row):
    """Return the commands of the expert and the last outcome."""
    play, shown, commands, outcome = world.begin(row, 0), row, [], None
    while outcome is None or not outcome.done:
        commands.append(textworld_expert(shown, np.random.default_rng(0)))
        outcome = play.step(commands[-1])
        assert outcome.ok
        said = [{"role": "assistant", "content": commands[-1]}, {"role": "user", "content": outcome.observation}]
        shown = shown | {"prompt": [*shown["prompt"], *said]}
    return commands, outcome


def test_the_expert_does_every_quest_in_no_more_commands_than_it_has(rows):
    for row in rows:
        commands, outcome = solve(build(), row)
        assert len(commands) <= int(row["family"].removeprefix("textworld"))
        assert (outcome.reward, outcome.done) == (1.0, True)


def test_states_and_ends_are_those_of_textworlds_own_environment(rows, tmp_path):
    """Random walks: the same commands are possible after each, and the same one wins."""
    rng, ends = np.random.default_rng(0), 0
    for row in rows:
        (tmp_path / "game.json").write_text(json.loads(row["metadata"])["textworld"])
        theirs, ours = TextWorldEnv(textworld.EnvInfos()), build().begin(row, 0)
        theirs.load(str(tmp_path / "game.json"))
        state = theirs.reset()
        for _ in range(12):
            possible = [c for c in state["admissible_commands"] if c.partition(" ")[0] not in SHOWN]
            assert list(ours.world.list_commands(ours.progress)) == possible
            command = textworld_expert(replayed(row, ours), rng, error_rate=0.5)
            outcome, (state, _, done) = ours.step(command), theirs.step(command)
            assert (outcome.done, outcome.reward == 1.0) == (done, bool(state["won"]))
            if done or ours.world.find_best(ours.progress) is None:
                break
        ends += outcome.done
    assert ends >= 2


def replayed(row, play):
    return row | {"prompt": [*row["prompt"], *({"role": "assistant", "content": c} for c in play.carried_out)]}


def test_what_is_seen_of_a_game_by_hand(pantry):
    play = build(lists_commands=True).begin(pantry, 0)
    exits, here = "exits: north by oak door (closed), west", "here: chest (locked); table (with brass key)"
    assert play.state_name == f"kitchen\n{exits}\n{here}\nyou have: nothing"
    seen = play.step("take brass key from table").observation.splitlines()
    assert seen[2:4] == ["here: chest (locked); table", "you have: brass key"]
    assert "unlock chest with brass key" in seen[4]
    assert "chest (closed)" in play.step("unlock chest with brass key").observation
    assert "chest (open, with pie)" in play.step("open chest").observation
    assert play.step("go west").observation.startswith("garden\nexits: east\nyou have: brass key")
    assert "north by oak door (open)" in [play.step("go east"), play.step("open oak door")][1].observation
    assert play.step("take pie from chest").reward == 1.0
    with pytest.raises(StepError, match="or has a quest without commands"):
        textworld_expert(pantry, np.random.default_rng(0))


@pytest.mark.parametrize(
    "command",
    ["", "take pie from chest", "look", "quit", "save", "restore", "go north\ngo west", "x" * 10_000, "\0", "Go west"],
)
def test_commands_that_the_state_does_not_admit_change_nothing(command, pantry):
    play = build(penalty=0.1).begin(pantry, 0)
    before = play.state_name
    outcome = play.step(command)
    assert outcome.observation == f"{REFUSED}\n{before}"
    assert (outcome.ok, outcome.done, outcome.reward) == (False, False, -0.1)
    assert play.step(" go west \n").ok


def test_a_saved_episode_goes_on_alike(rows):
    play = build().begin(rows[1], 0)
    assert isinstance(play, Savable)
    play.step(textworld_expert(rows[1], np.random.default_rng(0)))
    other = build().begin(rows[1], 0)
    other.restore(json.loads(json.dumps(play.save())))
    assert other.state_name == play.state_name
    command = textworld_expert(replayed(rows[1], play), np.random.default_rng(0))
    assert other.step(command) == play.step(command)
    with pytest.raises(StepError, match="another game"):
        build().begin(rows[0], 0).restore({"commands": ["open the gate"]})


def test_games_are_a_function_of_their_numbers_and_leave_other_random_numbers_alone(rows):
    before, numpy_before = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert textworld_games(size=6, split="train", quest=[2, 4], rooms=3, objects=5) == rows
    assert random.getstate() == before
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    test = textworld_games(size=2, split="test", quest=[2], hints=True, instruction="play: ", lists_commands=True)
    assert not {row["id"] for row in test} & {row["id"] for row in rows}
    text = test[0]["prompt"][0]["content"]
    assert text.startswith("play: ")
    assert "commands: " in text.splitlines()[-1]
    plain = textworld_games(size=2, split="test", quest=[2])
    assert [read_game(row).begin().state for row in plain] == [read_game(row).begin().state for row in test]
    assert len(read_game(plain[0]).objective) < len(read_game(test[0]).objective)


def test_what_is_missing_is_named(rows, monkeypatch):
    for metadata in ("{}", None, json.dumps({"textworld": "{}"}), json.dumps({"textworld": "no"}), "[]"):
        with pytest.raises(StepError, match="row r: its metadata has no game of TextWorld under `textworld`"):
            build().begin({"id": "r", "prompt": [], "metadata": metadata}, 0)
    commands, _ = solve(build(), rows[0])
    over = rows[0] | {"prompt": [*rows[0]["prompt"], *({"role": "assistant", "content": c} for c in commands)]}
    with pytest.raises(StepError, match="its game is over"):
        textworld_expert(over, np.random.default_rng(0))
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(StepError, match=re.escape("pip install 'posttrain[textworld]'")):
        textworld_games(size=1, split="train")


def test_recipes_find_everything_by_name():
    problems = {"use": "textworld_games", "split": "test", "size": 2, "quest": [1]}
    assert len(bind(ProblemsUse.model_validate(problems))()) == 2
    assert bind(TeacherUse.model_validate({"use": "textworld_expert", "error_rate": 0.5})).options == {
        "error_rate": 0.5
    }
    assert EnvUse.model_validate({"use": "textworld", "penalty": 0.1}).use == "textworld"
