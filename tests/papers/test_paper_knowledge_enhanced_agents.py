"""Knowledge-enhanced agents: what was correct and what visible things are good for, as text or as edges of a graph.

Environments, worlds and the table of affordances are those of the recipe. Not shown: ScienceWorld, RoBERTa.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from learning.control.worlds.text_worlds import WORD
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Outcome, PastTurn
from learning.lookup import bind
from learning.problems.text_games import text_games
from learning.text_game.knowledge import CAN, DID, write_facts
from schemas.recipe.load import load_recipe

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "knowledge-enhanced-agents.yaml")
STAGES = RECIPE.stages
SETTINGS = ("none", "memory", "affordance", "both")
TABLE = STAGES["agent@knowledge=both"].env.options["affordances"]
REWARDS = {"open door": 5.0, "look": 0.0, "take key": 3.0, "drop key": -3.0}
SEEN = "You see a door, and a wall."


class Scripted:
    """An episode that pays what the proof says."""

    def step(self, action):
        return Outcome(SEEN, reward=REWARDS[action])


def begin(knowledge):
    """An episode with the options of the recipe, around the scripted one."""
    informed = build_environment(STAGES[f"agent@knowledge={knowledge}"].env, {})
    row = text_games(size=1, split="train", turns=[2], rooms=3, items=2, holders=2, locks=1, crafts=False)[0]
    episode = informed.begin(row, 0)
    # The thing in the scripted texts is called by its name.
    episode.episode = Scripted()
    episode.knowledge = episode.knowledge.__class__(episode.knowledge.kind, episode.knowledge.affordances)
    return episode


@pytest.fixture(scope="module")
def worlds():
    """A world for each knowledge and form."""
    return {
        (form, knowledge): bind(STAGES[f"{form}@knowledge={knowledge}"].env, "env")()
        for form in ("text", "graph")
        for knowledge in SETTINGS
    }


def test_the_memory_has_exactly_the_actions_that_were_paid_for():
    episode = begin("memory")
    shown = [episode.step(action).observation for action in REWARDS]
    assert shown == [
        f"{SEEN}\ndone: open door",
        f"{SEEN}\ndone: open door",
        f"{SEEN}\ndone: open door, take key",
        f"{SEEN}\ndone: open door, take key",
    ]
    assert [action for _, relation, action in episode.knowledge.list_facts(episode.taken, SEEN)] == [
        "open door",
        "take key",
    ]


def test_a_visible_door_adds_its_listed_affordances_alone():
    assert TABLE["door"] == ["open", "go"]
    assert sum(len(verbs) for verbs in TABLE.values()) == 20
    episode = begin("affordance")
    assert episode.step("look").observation == f"{SEEN}\ncan: door open, door go"
    facts = episode.knowledge.list_facts([], "You see a doorbell, a wall.")
    assert facts == []
    assert episode.knowledge.list_facts([], "a door, a chest") == [
        ("door", CAN, "open"),
        ("door", CAN, "go"),
        ("chest", CAN, "open"),
        ("chest", CAN, "put"),
    ]


def test_four_settings_give_four_inputs_and_the_same_game():
    ends = {
        "none": "",
        "memory": "\ndone: open door",
        "affordance": "\ncan: door open, door go",
        "both": "\ndone: open door\ncan: door open, door go",
    }
    for knowledge, end in ends.items():
        outcome = begin(knowledge).step("open door")
        assert outcome.observation == f"{SEEN}{end}"
        assert (outcome.reward, outcome.done) == (5.0, False)


def test_a_closed_exit_of_the_game_is_a_door():
    """With the recipe's own patterns, in the game that is played."""
    world = bind(STAGES["text@knowledge=affordance"].env, "env")()
    find = world.knowledge.find_visible
    assert find("hall: nothing\nexits: north, east (closed)\nyou have: nothing") == ["door"]
    assert find("hall: chest (closed)\nexits: north, east\nyou have: red key") == ["chest", "key"]
    assert find("hall: shelf (red key)\nexits: north (red lock)\nyou have: nothing") == ["door", "shelf", "key"]


def test_the_language_models_see_the_problem_and_the_newest_answer():
    for name in SETTINGS:
        agent, lessons = STAGES[f"agent@knowledge={name}"], STAGES[f"lessons@knowledge={name}"]
        turns = [PastTurn("open east", "hall\ndone: open east"), PastTurn("look", "hall\ndone: open east, x")]
        shown = bind(agent.env.context, "context").ask(
            0, {"prompt": [{"role": "user", "content": "goal"}], "turns": turns, "row": {}}
        )
        assert shown.messages == [{"role": "user", "content": "goal\nhall\ndone: open east, x"}]
        assert STAGES[f"report@knowledge={name}"].env == agent.env
        assert agent.env.options["knowledge"] == name
        assert lessons.problems[0].options["of"]["env"]["knowledge"] == name


def solve_some(world, steps=4):
    """Observations of an episode in which the actions of a shortest solution are taken."""
    from learning.text_game.solver import solve

    shown = [world.reset(seed=3)[0]]
    rooms = world.world
    for action in solve(rooms.world, rooms.state)[:steps]:
        shown.append(world.step(rooms.choices.index(action))[0])
        shown.append(world.step(rooms.choices.index("look"))[0])
    return np.array(shown)


def test_control_policies_get_four_different_inputs_of_one_size(worlds):
    for form in ("text", "graph"):
        shown = [solve_some(worlds[form, knowledge]) for knowledge in SETTINGS]
        assert len({one.tobytes() for one in shown}) == 4
        assert len({one.shape for one in shown}) == 1
    assert worlds["text", "none"].observation_space == worlds["graph", "both"].observation_space


@pytest.mark.parametrize("knowledge", SETTINGS[1:])
def test_the_graph_has_the_same_facts_as_edges_and_no_text(knowledge, worlds):
    text, graph, bare = worlds["text", knowledge], worlds["graph", knowledge], worlds["graph", "none"]
    in_text, in_graph, without = (solve_some(world) for world in (text, graph, bare))
    facts = graph.list_facts()
    assert facts
    assert facts == text.list_facts()
    words, edges = slice(len(text.words), 2 * len(text.words)), slice(2 * len(text.words), None)
    # Words of the facts are in the one, edges in the other; what is seen is the same in both.
    named = {text.words[i] for i in in_text[-1, words].nonzero()[0]}
    assert named == set(WORD.findall(write_facts(facts)))
    assert not in_graph[:, words].any()
    assert not in_text[:, edges].any()
    np.testing.assert_array_equal(in_text[:, : words.start], in_graph[:, : words.start])
    added = {graph.edges[i] for i in (in_graph[-1, edges] - without[-1, edges]).nonzero()[0]}
    assert added == set(facts)
    assert (in_graph[:, edges] >= without[:, edges]).all()


def test_the_graph_has_what_is_seen(worlds):
    world = worlds["graph", "none"]
    world.reset(seed=3)
    rooms = world.world
    rooms.state = rooms.start
    assert set(rooms.graph) == {("you", "in", "kitchen"), ("cup", "in", "table"), ("pen", "in", "kitchen")}
    for action in ("go east", "take red key"):
        world.step(rooms.choices.index(action))
    assert set(rooms.graph) == {
        ("you", "in", "hall"),
        ("egg", "in", "hall"),
        ("red key", "in", "you"),
        ("hall | study", "is", "closed"),
        ("cellar | hall", "is", "closed"),
    }


def test_the_game_has_four_rooms_and_twelve_things_and_pays_for_progress(worlds):
    world = worlds["text", "memory"]
    rooms = world.world.world
    assert len(rooms.exits) == 4
    assert len(rooms.holders) + len(rooms.fixtures) + len(rooms.items) == 12
    world.reset(seed=0)
    world.world.state, world.world.whole = world.world.start, 6
    plan = ["take cup", "go east", "take red key", "open east", "go east", "put cup in desk"]
    paid, ends = [], []
    for action in ("look", "take pen", *plan):
        _, reward, done, cut, _ = world.step(world.world.choices.index(action))
        paid.append(reward)
        ends.append((done, cut))
    assert paid == pytest.approx([0, 0, *[1 / 6] * 5, 1 / 6 + 1])
    assert ends == [(False, False)] * 7 + [(True, False)]
    assert [action for _, relation, action in world.list_facts() if relation == DID] == plan
    starts = {(world.reset(seed=seed) and world.world.state) for seed in range(20)}
    assert len(starts) > 10


def test_the_classes_differ_in_their_knowledge_alone():
    for kind in ("lessons", "ranker", "agent", "text", "graph", "report", "text_report", "graph_report"):
        made = set()
        for name in SETTINGS:
            written = STAGES[f"{kind}@knowledge={name}"].model_dump_json()
            assert f'"knowledge":"{name}"' in written or f"@knowledge={name}" in written
            made.add(written.replace(f'"knowledge":"{name}"', "").replace(f"@knowledge={name}", ""))
        assert len(made) == 1
    for name in SETTINGS:
        text, graph = (STAGES[f"{form}@knowledge={name}"].model_dump() for form in ("text", "graph"))
        assert text["env"].pop("form") == "text"
        assert graph["env"].pop("form") == "graph"
        assert text == graph
        assert STAGES[f"agent@knowledge={name}"].model == f"ranker@knowledge={name}"
        assert json.loads(json.dumps(TABLE)) == STAGES[f"text@knowledge={name}"].env.options["affordances"]
