"""URPO: one batch has three kinds of problems with three rewards, and the model's own judgement changes with its
weights.

Not shown: judge skill emerging at 7B.
"""

from pathlib import Path

import pytest
import torch
from scipy.stats import kendalltau

from flows.planning.compile import compile_recipe
from learning.generation.engines.torch import Engine
from learning.lookup import bind
from learning.rewards.answers import exact
from learning.rewards.ranking import kendall
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler, scoring
from learning.toy_tasks.rankings import count_rises, ratings, rising
from learning.toy_tasks.rewards.ranking import rises
from lineage.layout import Layout
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "urpo.yaml"
PORT = "rewards.0.families.rising.judge"


@pytest.fixture(scope="module")
def stages():
    return load_recipe(RECIPE, profile="tiny").stages


def row(family, question, answer):
    return {"id": question, "prompt": [{"role": "user", "content": question}], "answer": answer, "family": family}


RANKED = row("ratings", "rate 0123456789 0123450000 9876543210=", "3 2 1")
BATCH = [
    (row("chain_sum", "1 + 2 =", "3"), "3"),
    (RANKED, "9 5 7"),
    (row("rising", "write 3=", None), "3456789999"),
    (row("chain_sum", "1 + 3 =", "4"), "3"),
    (RANKED, "5 7 9"),
    (RANKED, "a>b>c"),
    (row("rising", "write 9=", None), "9876543210"),
]


def scores(stage, policy, inputs=None, batch=BATCH):
    samples = [Sample(r, g, "policy", [1], [1], [0.0], "stop", text) for g, (r, text) in enumerate(batch)]
    sampler = Sampler(Engine(policy), policy, Sampling(), 0, 0)
    bound = bind(stage.rewards[0], "rewards.0", inputs or {})
    return bound.ask(0, {**scoring(samples), "sampler": sampler, "seed": 0, "states": {}})


def test_tau_of_scores_against_the_labelled_order():
    assert kendall([RANKED] * 3, ["9 5 7", "5 7 9", "none"]) == [pytest.approx(1 / 3), -1.0, -1.0]
    assert kendall([RANKED] * 3, ["9 5", "", "9 5 7 1"], floor=None) == [None] * 3
    assert kendall([RANKED], ["9 5 7"], unit=True) == [pytest.approx(2 / 3)]
    assert kendall([{**RANKED, "answer": None}], ["9 5 7"]) == [None]
    # Without ties it is the textbook's; a tie of the judge counts nothing, one of the labels is no pair.
    five = {**RANKED, "answer": "1 4 2 5 3"}
    assert kendall([five], ["2 9 1 3 7"])[0] == pytest.approx(kendalltau([1, 4, 2, 5, 3], [2, 9, 1, 3, 7]).statistic)
    assert kendall([RANKED], ["9 9 7"]) == [pytest.approx(2 / 3)]
    assert kendall([{**RANKED, "answer": "2 2 1"}], ["5 9 7"]) == [0.0]


def test_each_kind_gets_the_reward_of_its_own_function(stages, tiny_policy):
    got = scores(stages["trained"], tiny_policy)
    assert [got[0], got[3]] == exact([BATCH[0][0], BATCH[3][0]], ["3", "3"]) == [1.0, 0.0]
    assert [got[1], got[4], got[5]] == [pytest.approx(1 / 3), -1.0, -1.0]
    assert all(0 < got[i] < 1 for i in (2, 6))
    assert got[2] != got[6]
    # Beside other kinds an open answer is worth what it is worth alone.
    alone = scores(stages["trained"], tiny_policy, batch=[BATCH[2]])
    assert alone == pytest.approx([got[2]], abs=1e-6)


def test_own_judgement_moves_with_the_weights_and_a_frozen_judge_does_not(stages, tiny_policy, tiny_policy_folder):
    inputs = {PORT: tiny_policy_folder}
    own, frozen = scores(stages["trained"], tiny_policy), scores(stages["frozen"], tiny_policy, inputs)
    assert own == pytest.approx(frozen, abs=1e-6)
    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.mul_(1.1)
    moved, still = scores(stages["trained"], tiny_policy), scores(stages["frozen"], tiny_policy, inputs)
    assert still == frozen
    assert [i for i, (a, b) in enumerate(zip(own, moved, strict=True)) if a != b] == [2, 6]


def test_the_judge_of_the_recipe_is_the_starting_policy(stages):
    assert stages["frozen"].rewards[0].options["families"]["rising"]["judge"] == stages["frozen"].model == "speaker"


def test_strings_are_worth_as_much_as_they_rise():
    assert [count_rises(t) for t in ("0123456789", "9876543210", "0000000000", "0101010101")] == [9, 0, 9, 5]
    for r in ratings(size=20, seed=1, split="train"):
        strings = r["prompt"][0]["content"].removeprefix("rate ").removesuffix("=").split()
        assert " ".join(str(count_rises(s)) for s in strings) == r["answer"]
        assert len({count_rises(s) for s in strings}) == 3
    rows = rising(size=20, seed=1, split="train")
    assert rises(rows, [r["answer"] for r in rows])[:3] != [0.0] * 3
    assert rises(rows[:1], ["12"]) == [0.0]
    write = row("rising", "write 37=", None)
    assert rises([write] * 3, ["3789999999", "1789999999", "3719999999"]) == [1.0, 0.0, pytest.approx(8 / 9)]


def test_no_problem_is_on_both_sides():
    for make, more in ((ratings, {"candidates": 1}), (ratings, {}), (rising, {})):
        train = {r["id"] for r in make(size=60, seed=1, split="train", **more)}
        test = {r["id"] for r in make(size=30, seed=2, split="test", **more)}
        assert not train & test
        assert [r["id"] for r in make(size=9, seed=3, split="train", **more)] == [
            r["id"] for r in make(size=9, seed=3, split="train", **more)
        ]


def test_the_key_of_a_step_knows_the_rewards_inside_a_reward(tmp_path):
    plan = compile_recipe(load_recipe(RECIPE, profile="tiny"), Layout(tmp_path))
    rewards = {"learning.rewards.answers", "learning.rewards.judges", "learning.rewards.ranking"}
    inner = rewards | {"learning.sampling.verdicts"}
    assert inner <= set(plan.step("trained").code)
    (judge,) = [i for i in plan.step("frozen").identity["inputs"].items() if i[0] == PORT]
    assert judge[1]["key"] == plan.step("speaker").key
    assert "learning.rewards.judges" not in plan.step("speaker").code
