"""The environment `informed` and the world of text: saved memories, and what they refuse."""

import numpy as np
import pytest

from learning.control.worlds.text_worlds import InformedWorld, text_rooms
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.problems.text_games import text_games
from learning.text_game.knowledge import Knowledge, remember_correct, write_facts
from schemas.control import WorldUse
from schemas.errors import StepError
from schemas.use import EnvUse
from tests.control_worlds import corridor, notes

GAME = {
    "rooms": {"shed": {"east": "yard"}, "yard": {"west": "shed"}},
    "holders": {"shelf": {"room": "shed"}},
    "items": {"rake": "yard", "hose": "shed"},
    "start": "shed",
    "goal": {"item": "rake", "holder": "shelf"},
}


def test_a_saved_memory_goes_on():
    use = EnvUse.model_validate(
        {"use": "informed", "of": {"use": "text_game", "progress": 1.0}, "affordances": {"shelf": ["put"]}}
    )
    row = text_games(size=1, split="train", turns=[3], rooms=3, items=2, holders=2, locks=0, crafts=False)[0]
    environment = build_environment(use, {})
    first = environment.begin(row, 0)
    first.step("  look ")
    first.taken.append(("wave", 1.0))
    second = environment.begin(row, 0)
    second.restore(first.save())
    assert second.taken == [("look", 0.0), ("wave", 1.0)]
    assert second.step("look").observation == first.step("look").observation
    assert "done: wave" in second.step("look").observation


def test_facts_are_written_in_two_lines():
    knowledge = Knowledge("both", {"door": ["open"], "red key": ["take"]})
    facts = knowledge.list_facts([("a", 1.0), ("b", 0.0), ("c", 0.5)], "a red key and a door")
    assert write_facts(facts) == "done: a, c\ncan: door open, red key take"
    assert write_facts([]) == ""
    assert remember_correct([("a", -1.0), ("b", 1e-9)]) == ["b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shown_as": {"door": "x"}}, "lacks; add it there"),
        ({"affordances": {"d": ["o"]}, "shown_as": {"d": "("}}, "no reg"),
    ],
)
def test_a_wrong_table_is_refused(options, message):
    with pytest.raises(StepError, match=message):
        Knowledge("both", **options)


def test_a_world_of_the_users_needs_texts():
    world = InformedWorld(notes(), Knowledge("both", {"door": ["open"]}), "text")
    shown, _ = world.reset(seed=1)
    assert shown.shape == world.observation_space.shape
    with pytest.raises(StepError, match="its world has no `choices`"):
        InformedWorld(corridor(), Knowledge(), "text")


def test_a_game_that_cannot_be_played_is_refused():
    with pytest.raises(StepError, match="text_rooms: its `game`"):
        text_rooms(game=GAME | {"start": "attic"})
    near = text_rooms(game=GAME | {"rooms": {"shed": {}}, "items": {"rake": "shed"}})
    near.measure_distance = lambda state: 1
    with pytest.raises(StepError, match="no drawn start"):
        near.reset(seed=0)


def test_an_episode_is_cut_off_after_its_limit():
    use = {"use": "informed_world", "world": {"use": "text_rooms", "game": GAME, "limit": 2}}
    world = bind(WorldUse.model_validate(use), "env")()
    world.reset(seed=0)
    look = world.world.choices.index("look")
    assert [world.step(look)[2:4] for _ in range(2)] == [(False, False), (False, True)]
    assert np.isfinite(world.reset(seed=1)[0]).all()
