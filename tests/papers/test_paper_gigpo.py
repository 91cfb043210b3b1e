"""GiGPO: actions that a group took in the same state are compared by their discounted returns, at no further cost.

Episodes are dictated; the games, the states, the rewards and the advantages are those of the recipe. Not shown: that an
agent learns more from it, which is measured.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.environments.making import wrap_in_environment
from learning.lookup import bind
from learning.models.policy import Policy
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.scoring import scores_of
from learning.text_game.rows import make_row
from learning.text_game.world import Goal, Holder, State, World, describe
from schemas.recipe.load import load_recipe
from tests.papers.dictated import Dictated

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "gigpo.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, GRPO = STAGES["trained"], STAGES["grpo"]
GAMMA, EPSILON = 0.95, 1e-4
WORLD = World(
    exits={"hall": {"north": "attic"}, "attic": {"south": "hall"}},
    doors={},
    holders={"table": Holder("attic")},
    fixtures={},
    items=("cup",),
    goal=Goal("cup", "table"),
)
ROW = make_row(WORLD, State("hall", ("hall",)), 3)
SOLVED = ["go north", "go south", "take cup", "go north", "put cup in table"]
"""The hall without the cup in hand is its state at the first and third turn."""
LOST = ["drop cup", *["go north", "go south"] * 3, "go north"]


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 4000)


def play(policy, stage, scripts, row=ROW):
    """Samples of a game, one per script, and the number of turns that the engine was asked for."""
    engine = Dictated(policy.tokenizer, scripts)
    episodes = wrap_in_environment(engine, stage.env, policy.tokenizer, {}, policy.max_length)
    samples = Sampler(episodes, policy, Sampling(1.0, 2000), 0, 0).sample([SampleRequest(row, len(scripts))])
    (reward,) = (bind(use) for use in stage.rewards)
    supplies = {"rows": [row] * len(samples), "completions": [one.text for one in samples], "samples": samples}
    for sample, value in zip(samples, scores_of(reward, 0, supplies, {}), strict=True):
        sample.scores, sample.reward = {reward.name: value}, value
    return samples, sum(map(len, engine.contexts.values()))


def find_advantages(stage, samples, algorithm=None):
    """Return the advantage of every sampled token, and the batch."""
    name = next(name for name, one in STAGES.items() if one is stage)
    inputs = {port.path: Path("p") for port in LOADED.ports(name)}
    bound = algorithm or bind_algorithm(stage, inputs)
    batch = forest(samples)
    rows = [sample.row for sample in samples]
    return with_advantages(bound, batch, 0, states={}, rows=rows).sampled("advantage"), batch


def per_turn(values_T, batch, path):
    """Return the one value of each turn's tokens of a path."""
    own_T = batch.path_T == path
    turns_T = batch.sampled("turn")[own_T]
    found = [values_T[own_T][turns_T == turn].unique() for turn in turns_T.unique()]
    assert all(len(values) == 1 for values in found)
    return [float(values[0]) for values in found]


def test_the_state_of_a_turn_is_what_the_player_saw_before_it(policy):
    """Equal views have equal states, at any time and in any episode; feedback on a turn is no part of them."""
    (solved, lost), _ = play(policy, TRAINED, [SOLVED, LOST])
    first, attic, again, carrying, attic_carrying = [turn.state for turn in solved.turns]
    assert first == again != attic
    assert len({first, attic, carrying, attic_carrying}) == 4
    assert [turn.state for turn in lost.turns] == [first, first, *[attic, first] * 3]
    assert [turn.ok for turn in lost.turns] == [False] + [True] * 7
    assert first > 0
    assert describe(WORLD, State("hall", ("hall",))) in ROW["prompt"][0]["content"]


def test_steps_have_the_papers_advantages(policy):
    """By hand: returns of every visit, normalised over the visits of the state in the group."""
    samples, _ = play(policy, TRAINED, [SOLVED, LOST])
    assert [sample.reward for sample in samples] == [1.0, 0.0]
    values_T, batch = find_advantages(TRAINED, samples)
    episode = 0.5 / (torch.tensor([1.0, 0.0]).std().item() + EPSILON)
    returns = [[GAMMA ** (4 - turn) for turn in range(5)], [0.0] * 8]
    states = [[turn.state for turn in sample.turns] for sample in samples]
    visits = {}
    for of_path, values in zip(states, returns, strict=True):
        for state, value in zip(of_path, values, strict=True):
            visits.setdefault(state, []).append(value)

    def step(state, value):
        seen = torch.tensor(visits[state], dtype=torch.float64)
        return 0.0 if len(seen) == 1 else float((value - seen.mean()) / (seen.std() + EPSILON))

    for path, sign in ((0, 1), (1, -1)):
        expected = [sign * episode + step(*pair) for pair in zip(states[path], returns[path], strict=True)]
        assert per_turn(values_T, batch, path) == pytest.approx(expected)
    # The hall is seen twice by the success: leaving it with empty hands is worth less than taking the cup.
    of_success = per_turn(values_T, batch, 0)
    assert of_success[2] > of_success[0]
    # States that were seen once: only the episode counts.
    assert of_success[3:] == pytest.approx([episode] * 2)


def test_the_order_of_the_episodes_does_not_matter(policy):
    """A failure before a success keeps its returns of 0: discounts end where an episode does."""
    samples, _ = play(policy, TRAINED, [SOLVED, LOST])
    swapped, _ = play(policy, TRAINED, [LOST, SOLVED])
    (first_T, batch), (second_T, other) = find_advantages(TRAINED, samples), find_advantages(TRAINED, swapped)
    for path in (0, 1):
        assert per_turn(first_T, batch, path) == pytest.approx(per_turn(second_T, other, 1 - path))


def test_a_turn_without_an_answer_takes_no_step_of_the_next_episode(policy):
    """Only the episode counts for it; the first turn of the episode behind it has a step."""
    (lost, solved), _ = play(policy, TRAINED, [LOST, SOLVED])
    lost.turns[-1] = replace(lost.turns[-1], state=0)
    values_T, batch = find_advantages(TRAINED, [lost, solved])
    episode = 0.5 / (torch.tensor([1.0, 0.0]).std().item() + EPSILON)
    assert per_turn(values_T, batch, 0)[-1] == pytest.approx(-episode)
    assert per_turn(values_T, batch, 1)[0] != pytest.approx(episode)


def test_groups_that_see_the_same_states_are_not_compared(policy):
    """A second group of the same game, whose success is longer, changes nothing in the first one."""
    longer = ["drop cup", *SOLVED]
    samples, _ = play(policy, TRAINED, [SOLVED, LOST])
    others, _ = play(policy, TRAINED, [longer, LOST])
    alone_T, alone = find_advantages(TRAINED, samples)
    for sample in others:
        sample.group = samples[0].group + 1
    both_T, both = find_advantages(TRAINED, [*samples, *others])
    for path in (0, 1):
        assert per_turn(both_T, both, path) == pytest.approx(per_turn(alone_T, alone, path))
    apart_T, apart = find_advantages(TRAINED, others)
    assert per_turn(both_T, both, 2) == pytest.approx(per_turn(apart_T, apart, 0))


def test_grpo_gives_all_turns_of_an_episode_one_advantage_and_omega_zero_is_grpo(policy):
    samples, _ = play(policy, GRPO, [SOLVED, LOST])
    plain_T, batch = find_advantages(GRPO, samples)
    assert len(set(per_turn(plain_T, batch, 0))) == len(set(per_turn(plain_T, batch, 1))) == 1
    inputs = {port.path: Path("p") for port in LOADED.ports("trained")}
    gigpo = bind_algorithm(TRAINED, inputs)
    assert [part.name for part in gigpo.advantage] == ["center", "scale", "anchor_states"]
    *episode, steps = gigpo.advantage
    off = replace(steps, options={**steps.options, "weight": 0.0})
    silent_T, _ = find_advantages(TRAINED, samples, replace(gigpo, advantage=(*episode, off)))
    assert torch.equal(silent_T, plain_T)
    full_T, _ = find_advantages(TRAINED, samples)
    assert not torch.equal(full_T, plain_T)


def test_it_costs_no_call_more(policy):
    """The engine writes the turns of the episodes, and no column of another model or pass is asked for."""
    for stage in (TRAINED, GRPO):
        _, written = play(policy, stage, [SOLVED, LOST])
        assert written == len(SOLVED) + len(LOST)
    needed = [
        bind_algorithm(STAGES[name], {port.path: Path("p") for port in LOADED.ports(name)}).list_needed_names()
        for name in ("trained", "grpo")
    ]
    assert needed[0] - needed[1] == {"state_T", "turn_T", "earned_T"}


def test_the_trainings_differ_in_the_advantage_and_in_nothing_else():
    trained, grpo = (stage.model_dump() for stage in (TRAINED, GRPO))
    assert trained.pop("advantage")[:2] == grpo.pop("advantage")
    assert (trained.pop("algorithm"), grpo.pop("algorithm")) == ("gigpo", "grpo")
    assert trained == grpo
    assert [(term["use"], term["coef"]) for term in trained["loss_terms"]] == [("kl", 0.01)]
    assert dict(STAGES["report"].models) == {"start": "cold_start", "trained": "trained", "grpo": "grpo"}
    assert STAGES["report"].env == TRAINED.env


def test_games_of_training_and_report_are_disjoint():
    trained, reported = bind(STAGES["games"].problems[0])(), bind(STAGES["report"].tasks[0])()
    assert not {row["id"] for row in trained} & {row["id"] for row in reported}
    assert {json.loads(row["metadata"])["turns"] for row in reported} == {2, 3, 4}
    assert max(json.loads(row["metadata"])["turns"] for row in trained) < TRAINED.env.max_turns
