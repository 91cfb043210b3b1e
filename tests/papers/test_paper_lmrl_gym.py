"""LMRL Gym: five baselines read one data set of language games, and values join pieces of its episodes.

Losses, games, the filter and sampling are those of the recipe. Not shown: the eight tasks of the paper, partners that
are language models.
"""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import torch

from learning.auxiliary_networks.episode_rows import list_rewards
from learning.data.rows import SCHEMAS
from learning.environments.lookup_environment import build_environment
from learning.evaluation.normalised_returns import normalise_return
from learning.lookup import bind
from learning.toy_tasks.language_games import GOAL, WALLS, language_games
from schemas.auxiliary import ActionValueLossUse
from schemas.recipe.load import load_recipe
from tests.papers.tabular_values import Table

LOADED = load_recipe(Path(__file__).parents[2] / "recipes" / "papers" / "lmrl-gym.yaml")
STAGES = LOADED.stages
BASELINES = ("bc", "filtered_bc", "mc", "ilql", "ppo")
REPORT = STAGES["report"]
BETA = REPORT.logits_processors["ilql"][0].options["beta"]


def walk(start, moves):
    """An episode in the recipe's maze: states, moves and what they earn, and whether it reaches the goal."""
    row = next(
        row for split in ("train", "test") for row in games(split, "maze") if start in row["prompt"][0]["content"]
    )
    episode, state, made = build_environment(REPORT.env, {}).begin(row, 0), start, []
    for move in moves:
        outcome = episode.step(move)
        made.append((state, move, outcome.reward))
        state = outcome.observation
        if outcome.done:
            return made, True
    return made, False


def games(split, game, size=12):
    return language_games(split=split, size=size, games=[game])


def find_path(start, choose):
    """The turns of a greedy player, and whether it reaches the goal within the recipe's turns."""
    row = next(
        row for split in ("train", "test") for row in games(split, "maze") if start in row["prompt"][0]["content"]
    )
    episode, state, moves = build_environment(REPORT.env, {}).begin(row, 0), start, []
    for _ in range(REPORT.env.max_turns):
        moves.append(choose(state))
        outcome = episode.step(moves[-1])
        state = outcome.observation
        if outcome.done:
            return moves, True
    return moves, False


LOST, _ = walk("at 2 1", ["north", "south"] * 4)
"""Never reaches the goal: at the corner it always turns back."""
BUMPING, _ = walk("at 1 1", ["north", "north", "east", "east", "north"])
"""Reaches it from the corner, after two turns against a wall."""


@pytest.fixture(scope="module")
def stitched():
    return Table(STAGES["ilql"], [LOST, LOST, BUMPING])


def test_values_join_two_episodes_to_a_path_that_neither_has(stitched):
    """From 2 1 no episode reaches the goal. The best path begins as the lost one and ends as the other."""
    moves, found = find_path("at 2 1", lambda state: stitched.improve(state, BETA))
    assert (moves, found) == (["north", "east", "east", "north"], True)
    moves, found = find_path("at 2 1", stitched.imitate)
    assert (moves, found) == (["north", "south"] * 4, False)
    assert not any(reward > 0 for _, _, reward in LOST)
    assert len(BUMPING) > 3


def test_bumping_into_the_wall_is_worth_less_than_going_on(stitched):
    row = stitched.states.index("at 1 1")
    value = dict(zip(stitched.actions, stitched.q_SA[row].tolist(), strict=True))
    assert value["east"] > max(value["north"], value["south"]) + 0.3
    gamma = STAGES["ilql"].loss[1].options["gamma"]
    cost, win = REPORT.env.options["cost"], REPORT.env.options["win"]
    best = -cost - gamma * cost + gamma**2 * win
    assert value["east"] == pytest.approx(best, abs=0.1)


def test_monte_carlo_values_are_those_of_the_whole_episode(stitched):
    """From 2 1 the data never reach the goal: their mean return is the value of north, and ILQL's is higher."""
    mc = Table(STAGES["mc"], [LOST, LOST, BUMPING])
    north = [table.q_SA[table.states.index("at 2 1"), table.actions.index("north")] for table in (mc, stitched)]
    gamma, cost = STAGES["mc"].loss[0].options["gamma"], REPORT.env.options["cost"]
    sums = [-cost * sum(gamma**k for k in range(left)) for left in (8, 6, 4, 2)]
    assert float(north[0]) == pytest.approx(sum(sums) / len(sums), abs=0.05)
    assert north[1] > north[0] + 0.2


def test_monte_carlo_targets():
    (use, _) = STAGES["mc"].loss
    assert use.use == "monte_carlo"
    half = ActionValueLossUse.model_validate({**use.model_dump(), "gamma": 0.5})
    columns = {
        "q_TH": torch.tensor([[0.25], [0.5], [1.0]], dtype=torch.float64),
        "reward_T": torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64),
        "path_T": torch.zeros(3).long(),
    }
    assert bind(half).ask(0, columns).tolist() == pytest.approx([0.0] * 3)
    zero = bind(half).ask(0, columns | {"q_TH": torch.zeros(3, 1, dtype=torch.float64)})
    assert zero.tolist() == pytest.approx([0.25**2 / 2, 0.5**2 / 2, 1 / 2])


def filter_rows(returns, family="f"):
    """The ids of rows with these returns that the recipe's filter keeps."""
    (source,) = STAGES["best"].sources
    rows = [
        {
            "id": f"{family}{i}",
            "prompt": [{"role": "user", "content": "p"}],
            "completion": [{"role": "assistant", "content": "c"}],
            "answer": "",
            "family": family,
            "metadata": json.dumps({"rewards": rewards}),
        }
        for i, rewards in enumerate(returns)
    ]
    return source, rows


def run_filter(*groups):
    source, _ = filter_rows([])
    with duckdb.connect() as connection:
        rows = pa.Table.from_pylist([row for _, group in groups for row in group], schema=SCHEMAS["chat"])
        connection.register("rows", rows)
        kept = connection.execute(f"select id, metadata from ({source.query}) order by id").fetchall()
    return [name for name, _ in kept]


def test_filtered_cloning_keeps_the_best_quarter_of_each_game():
    low = filter_rows([[0.0, 0.1 * i] for i in (3, 1, 4, 0, 7, 6, 2, 5)], "a")
    high = filter_rows([10 + i for i in range(8)], "b")
    assert run_filter(low) == ["a4", "a5"]
    assert run_filter(low, high) == ["a4", "a5", "b6", "b7"]
    assert run_filter(filter_rows([0, 1, 1, 1])) == ["f1", "f2", "f3"]  # equals stay together
    assert STAGES["filtered_bc"].data == "best"
    assert STAGES["best"].sources[0].from_ == "episodes"


def find_upstream(name):
    """The stages that a stage reads, and those that these read."""
    found = set()
    waiting = [name]
    while waiting:
        for port in LOADED.ports(waiting.pop()):
            waiting += [step for step in port.steps if step not in found]
            found |= set(port.steps)
    return found


def test_all_five_read_the_same_data():
    assert set(REPORT.models) == set(BASELINES)
    for name in BASELINES:
        assert "episodes" in find_upstream(name)
    assert {STAGES[name].data for name in ("bc", "mc", "ilql")} == {"episodes"}
    assert STAGES["ppo"].extra_samples[0].options["data"] == "episodes"
    makers = {name for name in find_upstream("report") if STAGES[name].kind in ("synthesize", "collect")}
    assert makers == {"episodes", "problems"}
    (data, online) = (STAGES[name].problems[0] for name in ("episodes", "problems"))
    assert data.options["of"]["size"] == online.options["size"]
    assert data.options["of"]["seed"] == online.options["seed"]


def test_values_are_sampled_with_the_imitation_as_their_prior():
    for name in ("mc", "ilql"):
        (use,) = REPORT.logits_processors[name]
        assert (use.use, use.options["values"], use.options.get("prior", 1.0)) == ("action_values", name, 1.0)
        assert REPORT.models[name] == STAGES[name].model == "bc"
    assert set(REPORT.logits_processors) == {"mc", "ilql"}
    assert [use.use for use in STAGES["ilql"].loss] == ["expectile", "bellman", "conservative"]
    assert STAGES["ilql"].loss[0].options["tau"] == 0.7
    assert STAGES["bc"].train_on == STAGES["filtered_bc"].train_on == "all"
    same = ("max_steps", "learning_rate", "per_device_train_batch_size")
    assert len({tuple(getattr(STAGES[name], key) for key in same) for name in ("mc", "ilql")}) == 1
    assert len({tuple(getattr(STAGES[name], key) for key in same) for name in ("bc", "filtered_bc")}) == 1


def test_episodes_are_whole_and_have_a_reward_for_each_turn():
    rows = bind(STAGES["episodes"].problems[0])()
    win, cost = REPORT.env.options["win"], REPORT.env.options["cost"]
    assert {row["family"] for row in rows} == {"maze", "questions", "wordle"}
    for row in rows[::17]:
        rewards = list_rewards(row | {"completion": [{"role": "assistant", "content": row["answer"]}]})
        assert set(rewards[:-1]) <= {-cost}
        assert rewards[-1] in (win, -cost)
        assert rewards[-1] == win or len(rewards) == REPORT.env.max_turns
    assert STAGES["episodes"].teacher.use == "answer"
    shown = {row["id"].partition(".")[0] for row in rows}
    assert not shown & {row["id"] for row in bind(REPORT.tasks[0])()}


def test_returns_are_normalised_by_the_data():
    use = STAGES["normalised"].function
    low, high = use.options["low"], use.options["high"]
    cost, win = REPORT.env.options["cost"], REPORT.env.options["win"]
    assert (low, high) == (-REPORT.env.max_turns * cost, win)
    assert [normalise_return(value, low, 0.4, high) for value in (low, 0.4, high, 0.7)] == pytest.approx(
        [0, 50, 100, 75]
    )
    assert STAGES["normalised"].inputs == {"data": "episodes", "report": "report"}
    assert REPORT.metrics[0].use == "mean_score"


def test_the_maze_can_be_left_from_everywhere():
    assert len(WALLS) == 8
    assert GOAL == (0, 3)
    assert sum(len(games(split, "maze", 15)) for split in ("train", "test")) == 15
