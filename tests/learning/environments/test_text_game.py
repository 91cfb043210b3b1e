"""Text games: the rules on a world laid out by hand, the expert's solutions, and games that are refused."""

import json

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Savable
from learning.lookup import bind
from learning.teachers.text_games import text_game_expert
from learning.text_game.rows import make_row, read_game
from learning.text_game.solver import solve
from learning.text_game.world import Goal, Holder, State, World, act, describe, is_solved, list_actions, name_door
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse

WORLD = World(
    exits={"hall": {"north": "attic", "east": "den"}, "attic": {"south": "hall"}, "den": {"west": "hall"}},
    doors={name_door("hall", "attic"): "red key", name_door("hall", "den"): None},
    holders={"table": Holder("hall"), "chest": Holder("attic", opens=True), "box": Holder("den", opens=True)},
    fixtures={"sink": "den", "stove": "attic"},
    items=("cup", "red key", "pen"),
    goal=Goal("cup", "chest", "clean"),
)
START = State("hall", ("table", "box", "hall"))
PLAN = [
    *("take cup", "open east", "go east", "open box", "take red key", "wash cup", "go west", "open north", "go north"),
    *("open chest", "put cup in chest"),
]


def games(**options):
    use = {"use": "text_games", "size": 60, "split": "train", **options}
    return bind(ProblemsUse.model_validate(use))()


def begin(row, **options):
    return build_environment(EnvUse.model_validate({"use": "text_game", **options}), {}).begin(row, 0)


def play(row, actions):
    episode = begin(row)
    return [episode.step(action) for action in actions]


def test_what_is_seen_after_every_action():
    row = make_row(WORLD, START, len(PLAN))
    assert row["prompt"][0]["content"] == (
        "put the clean cup in the chest\nhall: table (cup), pen\nexits: north (red lock), east (closed)\n"
        "you have: nothing"
    )
    outcomes = play(row, PLAN)
    assert [one.observation for one in outcomes] == [
        "hall: table (empty), pen\nexits: north (red lock), east (closed)\nyou have: cup",
        "hall: table (empty), pen\nexits: north (red lock), east\nyou have: cup",
        "den: sink, box (closed)\nexits: west\nyou have: cup",
        "den: sink, box (red key)\nexits: west\nyou have: cup",
        "den: sink, box (empty)\nexits: west\nyou have: cup, red key",
        "den: sink, box (empty)\nexits: west\nyou have: clean cup, red key",
        "hall: table (empty), pen\nexits: north (red lock), east\nyou have: clean cup, red key",
        "hall: table (empty), pen\nexits: north, east\nyou have: clean cup, red key",
        "attic: stove, chest (closed)\nexits: south\nyou have: clean cup, red key",
        "attic: stove, chest (empty)\nexits: south\nyou have: clean cup, red key",
        "",
    ]
    assert [(one.done, one.reward, one.ok) for one in outcomes] == [(False, 0.0, True)] * 10 + [(True, 1.0, True)]


@pytest.mark.parametrize(
    "action",
    [
        *(
            "",
            "go",
            "go west",
            "go north",
            "go east",
            "open north",
            "open table",
            "open box",
            "open chest",
            "open attic",
        ),
        *(
            "take red key",
            "take table",
            "take",
            "put cup in table",
            "put pen in table",
            "put cup",
            "wash cup",
            "drop cup",
        ),
        *("heat pen", "dance", "look around", "take the cup", "take cup now", "open west"),
    ],
)
def test_an_impossible_action_changes_nothing(action):
    assert act(WORLD, START, action) is None
    (outcome,) = play(make_row(WORLD, START, 11), [action])
    assert (outcome.ok, outcome.done, outcome.reward) == (False, False, 0.0)
    assert outcome.observation == f"you cannot do that\n{describe(WORLD, START)}"
    assert begin(make_row(WORLD, START, 11), penalty=0.1).step(action).reward == -0.1


def test_case_and_spaces_do_not_matter_and_looking_changes_nothing():
    assert act(WORLD, START, "  Take  CUP ") == act(WORLD, START, "take cup")
    assert act(WORLD, START, "look") == START
    carried = act(WORLD, START, "take pen")
    assert describe(WORLD, act(WORLD, carried, "drop pen")) == describe(WORLD, START)
    assert act(WORLD, carried, "put pen in table").places == ("table", "box", "table")


def test_an_item_in_the_right_place_but_not_clean_is_no_solution():
    dirty = State("attic", ("you", "you", "hall"), frozenset({"chest", name_door("hall", "attic")}))
    put = act(WORLD, dirty, "put cup in chest")
    assert not is_solved(WORLD, put)
    assert solve(WORLD, put) is not None


def test_the_expert_finds_a_shortest_solution():
    plan = solve(WORLD, START)
    assert len(plan) == len(PLAN) == len(set(plan))
    assert solve(WORLD, START, most=len(PLAN) - 1) is None
    state = START
    for action in plan:
        state = act(WORLD, state, action)
    assert is_solved(WORLD, state)


def search_all(world, start):
    """Return the length of a shortest solution over every possible action, without the expert's choice of them."""
    layer, seen, depth = {start}, {start}, 0
    while not any(is_solved(world, state) for state in layer):
        layer = {act(world, state, action) for state in layer for action in list_actions(world, state)} - seen
        seen, depth = seen | layer, depth + 1
    return depth


def test_no_solution_is_shorter_than_the_experts():
    rows = games(size=12, seed=5, rooms=3, items=2, holders=2, turns=[3, 4, 5])
    for row in rows:
        world, start = read_game(row)
        assert search_all(world, start) == len(solve(world, start)) == json.loads(row["metadata"])["turns"]


@pytest.mark.parametrize(
    "options", [{}, {"rooms": 9, "locks": 3, "turns": [8, 10], "size": 20}, {"rooms": 1, "locks": 0, "turns": [2, 3]}]
)
def test_every_generated_game_is_solved_by_its_expert_in_the_requested_turns(options):
    rng = np.random.default_rng(0)
    rows = games(**options)
    wanted = options.get("turns", [4, 5, 6])
    assert [row["family"] for row in rows] == [f"text_game{wanted[i % len(wanted)]}" for i in range(len(rows))]
    for row in rows:
        episode, shown, outcome = begin(row), dict(row), None
        for turn in range(json.loads(row["metadata"])["turns"]):
            assert outcome is None or not outcome.done, turn
            action = text_game_expert(shown, rng)
            outcome = episode.step(action)
            messages = [{"role": "assistant", "content": action}, {"role": "user", "content": outcome.observation}]
            shown["prompt"] = [*shown["prompt"], *messages]
            assert outcome.ok
        assert (outcome.done, outcome.reward) == (True, 1.0)


def test_games_are_deterministic_distinct_and_held_out_by_problem():
    train, again, test = games(seed=4), games(seed=4), games(seed=4, split="test")
    assert train == again
    ids = {row["id"] for row in train}
    assert len(ids) == 60
    assert not ids & {row["id"] for row in test}
    assert not ids & {row["id"] for row in games(seed=9, split="test")}


def test_games_have_locks_and_crafts_as_asked():
    worlds = [read_game(row)[0] for row in games(size=200, locks=2)]
    locked = [world for world in worlds if any(world.doors.values()) or any(one.key for one in world.holders.values())]
    assert 60 < len(locked) < 180
    assert {world.goal.quality for world in worlds} == {None, "clean", "hot"}
    plain = [read_game(row)[0] for row in games(locks=0, crafts=False)]
    assert not any(world.doors or world.fixtures or world.goal.quality for world in plain)
    assert all(len(world.exits) == 4 and len(world.items) == 3 for world in plain)


def test_a_game_that_cannot_be_solved_is_refused():
    """The key of the only door is behind it."""
    row = make_row(WORLD, State("hall", ("table", "attic", "hall")), 5)
    with pytest.raises(StepError, match="cannot be solved"):
        begin(row)
    with pytest.raises(StepError, match="cannot be solved"):
        text_game_expert(row, np.random.default_rng(0))


@pytest.mark.parametrize("metadata", [None, "", "{}", "[]", '{"game": 3}', '{"game": "{}"}'])
def test_a_row_without_a_game_is_refused(metadata):
    with pytest.raises(StepError, match="make problems with"):
        begin({"id": "x", "prompt": [], "metadata": metadata})


def test_the_expert_needs_all_turns():
    row = make_row(WORLD, START, 11)
    row["metadata"] = json.dumps({**json.loads(row["metadata"]), "turn": 2})
    with pytest.raises(StepError, match="shows 0 of 2 turns"):
        text_game_expert(row, np.random.default_rng(0))


def test_too_many_games_are_refused():
    with pytest.raises(StepError, match="lower `size` or `turns`"):
        games(size=2, rooms=1, locks=0, turns=[20])


def test_a_saved_game_continues_bit_for_bit():
    """Random walks from a restored state give the outcomes of the walk that was not interrupted."""
    for place, row in enumerate(games(size=20, seed=6)):
        rng = np.random.default_rng(place)
        first = begin(row)
        for _ in range(4):
            actions = list(list_actions(first.world, first.now))
            first.step(actions[int(rng.integers(len(actions)))])
        saved = first.save()
        second = begin(row)
        second.restore(json.loads(json.dumps(saved)))
        assert (second.save(), second.state_name) == (saved, first.state_name)
        walk = [*list(list_actions(first.world, first.now))[:2], "look", "nonsense", "go north", "open chest"]
        assert [first.step(action) for action in walk] == [second.step(action) for action in walk]
        assert first.save() == second.save()
    assert isinstance(first, Savable)
    assert isinstance(first, HasStateName)


def test_an_erring_expert_writes_another_possible_action():
    row, rng = make_row(WORLD, START, 11), np.random.default_rng(0)
    written = {text_game_expert(row, rng, error_rate=1.0) for _ in range(200)}
    assert written == set(list_actions(WORLD, START)) - {text_game_expert(row, rng)}
