"""MARS: one policy plays all roles; what a turn and the later ones earned is summed up first, and normalised by role.

The recipe's own stages play Kuhn poker with a tiny model. Not shown: transfer to other games and to mathematics.
"""

from pathlib import Path

import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion
from learning.data.rows import write_rows
from learning.rl.team import select_trained
from learning.samples.conversation import RoleSample
from learning.samples.engine_protocol import Generation, Sampling, Turn
from learning.samples.sample import SampleRequest
from learning.toy_tasks.kuhn import kuhn_deals
from schemas.recipe.load import load_recipe
from tasks.context import Context
from tasks.rl_roles import make_team

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "mars.yaml"
STAGES = load_recipe(RECIPE).stages
TRAINED, JOINT, SUMMED = (STAGES[name] for name in ("trained", "joint", "summed"))


def sample(role, conversation, earned):
    """What a role said in an episode of one problem: turns of two tokens, each before one that is observed."""
    size = 3 * len(earned)
    made = RoleSample(
        {"id": "q", "family": "game"},
        ["one", "two"].index(role),
        "policy",
        [1],
        [5] * size,
        [-1.0] * size,
        "stop",
        "",
        turns=[Turn(2, 1, reward) for reward in earned],
        versions=[0] * size,
        role=role,
        policy="model",
        conversation=conversation,
    )
    made.scores, made.reward = {"environment.earned": sum(earned)}, sum(earned)
    return made


def find_advantages(stage, samples):
    """The advantage of every turn."""
    own = select_trained(samples, "model")
    assert own == samples
    algorithm = bind_algorithm(stage, {})
    batch = with_advantages(algorithm, forest(own), 0, states={}, rows=[one.row for one in own])
    return batch.sampled("advantage")[::2].tolist()


def test_each_role_is_normalised_alone():
    samples = [sample("one", 0, [1.0]), sample("one", 1, [0.0]), sample("two", 0, [10.0]), sample("two", 1, [4.0])]
    assert find_advantages(TRAINED, samples) == pytest.approx([1, -1, 1, -1], abs=1e-4)
    together = find_advantages(JOINT, samples)
    deviation = (15.1875) ** 0.5
    assert together == pytest.approx([(value - 3.75) / deviation for value in (1, 0, 10, 4)], abs=1e-4)
    assert max(together[:2]) < 0


def test_what_turns_earn_is_summed_up_before_it_is_normalised():
    samples = [sample("one", 0, [0.0, 1.0]), sample("one", 1, [0.0, 0.0])]
    assert find_advantages(TRAINED, samples) == pytest.approx([1, 1, -1, -1], abs=1e-4)
    assert find_advantages(SUMMED, samples) == pytest.approx([1.1547, 1.7321, -1.1547, -0.5774], abs=1e-3)


def test_the_stages_differ_in_the_advantage_only():
    ours, *others = (stage.model_dump(mode="json") for stage in (TRAINED, JOINT, SUMMED))
    for theirs in others:
        assert {key for key in ours if ours[key] != theirs[key]} == {"advantage"}


@pytest.fixture
def team(tiny_policy_folder, tmp_path):
    """The team of the stage `trained`."""
    (tmp_path / "deals").mkdir()
    write_rows(tmp_path / "deals", "prompts", kuhn_deals())
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    inputs = {"model": tiny_policy_folder, "prompts": tmp_path / "deals"}
    made = make_team(TRAINED, Context(inputs, tmp_path / "run", tmp_path / "run/checkpoints", seed=1))
    yield made
    made.close()


class Dictated:
    """An engine that answers every prompt with the action of a strategy."""

    def __init__(self, policy, actions):
        self.policy, self.actions = policy, actions

    def generate(self, requests, sampling):
        return [[self.answer(decode(self.policy.tokenizer, one.prompt_ids))] * one.n for one in requests]

    def answer(self, prompt):
        text = next(action for shown, action in self.actions.items() if shown in prompt)
        ids = encode_completion(self.policy.tokenizer, [{"role": "assistant", "content": text}])
        return Generation(ids, [-1.0] * len(ids), "stop")


def test_one_policy_speaks_in_both_roles_and_learns_from_both(team):
    assert list(team.learners) == ["model"]
    assert not team.partners
    # With K the first player passes, is bet at, and calls: it has two turns, the second player one.
    engine = Dictated(team.main.policy, {"K\nb": "b", "b": "b", "Qp": "b", "K": "p"})
    for speaker in team.speakers.values():
        object.__setattr__(speaker, "engine", engine)
    deals = {row["id"]: row for row in kuhn_deals()}
    samples = team.make_sampler(Sampling(1.0, 3), 3, 0).sample([SampleRequest(deals[d], 2) for d in ("KQ0", "KQ1")])
    trained = select_trained(samples, "model")
    assert trained == samples
    found = [(one.role, [turn.reward for turn in one.turns]) for one in samples]
    assert found == [("one", [0, 2]), ("two", [-2])] * 2 + [("one", [-2]), ("two", [0, 2])] * 2
    # A group has one role in one deal.
    assert len({one.group for one in samples}) == 4


def test_the_report_has_the_distance_to_equilibrium_and_the_match_an_opponent():
    assert STAGES["report"].metrics[0].use == "learning.toy_tasks.kuhn:nash_gap"
    names = ["start", "trained", "joint", "summed"]
    for stage in ("report", "match"):
        assert STAGES[stage].models == {name: name for name in names}
    match = STAGES["match"]
    assert {role: spec.policy for role, spec in match.roles.items()} == {"one": "model", "two": "opponent"}
    assert match.policies["opponent"].model == "start"
    assert [use.use for use in match.rewards] == ["environment.earned"]
