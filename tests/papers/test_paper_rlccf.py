"""Wisdom of the Crowd: the vote of the models, weighted by their self-consistency, is the only label that training
uses.

Not shown: the gain of four models of 7B to 9B. Joint training is in rounds: within a round the other models do not
change.
"""

import json
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.data.rows import write_rows
from learning.rewards import consensus
from learning.rewards.consensus import count_weighted_votes, elect, majority
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation, Sampling
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler, score
from learning.solvers import crowd_vote
from schemas.recipe.load import load_recipe
from tasks.context import Context

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rlccf.yaml"
FIRST, SECOND, THIRD = "AAAB", "BBCD", "BCDE"
PORTS = ("rewards.0.others.0", "rewards.0.others.1")


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(RECIPE, profile="tiny")


class Says:
    """A model that gives the letters of a text, one for each sample."""

    def __init__(self, tokenizer, letters):
        self.tokenizer, self.letters, self.asked = tokenizer, letters, []

    def generate(self, requests, sampling):
        self.asked += [(self.tokenizer.decode(r.prompt_ids), r.n, sampling) for r in requests]
        return [[Generation(self.tokenizer.encode(c), [], "stop") for c in self.letters[: r.n]] for r in requests]


@pytest.fixture
def rewards_of(recipe, tiny_policy, monkeypatch):
    """Rewards of one model's completions while the two others say something else, by the recipe's own stage."""

    def of(mine, *others, gold=None, stage="rounds-1-wide"):
        models = [Sampler(Says(tiny_policy.tokenizer, text), tiny_policy, Sampling(1.0, 6), 0, 0) for text in others]
        monkeypatch.setattr(consensus, "guest", dict(zip(PORTS, models, strict=True)).get)
        row = {"id": "q", "prompt": [{"role": "user", "content": "1 + 2 ="}], "answer": gold, "family": "chain_sum"}
        samples = [Sample(row, 0, "policy", [1], [5 + i], [-1.0], "stop", c) for i, c in enumerate(mine)]
        parts = bind_sampling_slots(recipe.stages[stage], {port: port for port in PORTS})
        own = Sampler(None, tiny_policy, Sampling(1.0, 6), 0, 0)
        score(parts.rewards, parts.weights, samples, {"step": 0, "seed": 0, "states": {}, "sampler": own})
        of.asked = [model.engine.asked for model in models]
        return samples

    return of


def test_votes_are_weighted_by_self_consistency():
    votes = count_weighted_votes([list(FIRST), list(SECOND), list(THIRD)])
    assert votes["A"] == 3 * 0.75 == 2.25
    assert votes["B"] == 1 * 0.75 + 2 * 0.5 + 1 * 0.25 == 2.0
    assert elect(votes) == "A"
    # An answer of four makes a share of a quarter, though it is the only one; of equal votes the first wins.
    assert count_weighted_votes([["A", None, None, None]]) == {"A": 0.25}
    assert elect({"B": 1.0, "A": 1.0}) == "B"
    plain = majority([{}] * 12, list(FIRST + SECOND + THIRD), [0] * 12)
    assert [i for i, s in enumerate(plain) if s == 1.0] == [3, 4, 5, 8]


def test_every_model_is_rewarded_for_agreeing(rewards_of):
    assert [t.reward for t in rewards_of(FIRST, SECOND, THIRD)] == [1.0, 1.0, 1.0, 0.0]
    assert [t.reward for t in rewards_of(SECOND, FIRST, THIRD)] == [0.0] * 4
    assert [t.reward for t in rewards_of(THIRD, FIRST, SECOND)] == [0.0] * 4


def test_the_others_answer_the_same_problem_as_often_and_as_freely(rewards_of):
    rewards_of(FIRST, SECOND, THIRD)
    for asked in rewards_of.asked:
        ((prompt, number, sampling),) = asked
        assert "1 + 2 =" in prompt
        assert number == len(FIRST)
        assert (sampling.temperature, sampling.max_new_tokens) == (1.0, 6)


def columns(stage, samples):
    algorithm = bind_algorithm(stage, {})
    batch = with_advantages(algorithm, with_dropped(forest(samples), False), 0)
    return {**batch.tokens, **batch.paths, "ids": batch.packed.input_ids_M}


def test_gold_answers_reach_no_training_tensor(rewards_of, recipe):
    stage = recipe.stages["rounds-1-wide"]
    none, garbage = (columns(stage, rewards_of(FIRST, SECOND, THIRD, gold=gold)) for gold in (None, "garbage"))
    assert none.keys() == garbage.keys()
    assert all(torch.equal(none[name], garbage[name]) for name in none)
    assert float(none["advantage"].abs().max()) > 0.1
    nameless = recipe.stages["nameless"].problems
    assert [use.use for use in nameless] == ["unlabelled"]


def test_what_one_model_samples_changes_the_rewards_of_another(rewards_of):
    before = [t.reward for t in rewards_of(SECOND, FIRST, THIRD)]
    after = [t.reward for t in rewards_of(SECOND, "BBBB", THIRD)]
    assert before != after == [1.0, 1.0, 0.0, 0.0]
    alone = majority([{"answer": None}] * 4, list(SECOND), [0] * 4)
    assert alone == [1.0, 1.0, 0.0, 0.0]


def test_every_round_asks_the_others_as_the_last_round_left_them(recipe):
    models = {"wide", "narrow", "shallow"}
    for name in models:
        ports = {port.path: port.steps for port in recipe.ports(f"rounds-2-{name}")}
        assert ports["model"] == (f"rounds-1-{name}",)
        assert {ports[p] for p in PORTS} == {(f"rounds-1-{other}",) for other in models - {name}}


def test_the_joint_vote_is_measured(tmp_path, tiny_policy, monkeypatch):
    rows = [
        {"id": str(i), "prompt": [{"role": "user", "content": "?"}], "answer": a, "family": "f", "metadata": None}
        for i, a in enumerate(("A", "B", None))
    ]
    write_rows(tmp_path, "prompts", rows)
    answers = {"one": FIRST, "two": SECOND, "three": THIRD}
    models = {k: Sampler(Says(tiny_policy.tokenizer, v), tiny_policy, Sampling(), 0, 0) for k, v in answers.items()}
    monkeypatch.setattr(crowd_vote, "guest", models.get)
    context = Context({}, tmp_path / "made", tmp_path / "kept", seed=1)
    got = crowd_vote.group_vote(context, models=list(answers), prompts=tmp_path, num_generations=4)
    assert got == {"vote": 0.5, "majority_0": 0.5, "majority_1": 0.5, "majority_2": 0.5}
    assert json.loads((context.output("result") / "votes.json").read_text()) == {"0": "A", "1": "A"}
