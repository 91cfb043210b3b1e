"""VERIRL: trace-back rescoring, the rule for pairs and sample-balanced weights have the exact values.

Not shown: timing and all else of Verilog. Unsure: what a completion's probability is; the geometric mean of its tokens'
is taken, which is the probability itself for one token.
"""

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_dropped, with_weights
from learning.algorithm.loss_aggregation.sample_balance import balance
from learning.batch.batch_layout import single_turn
from learning.data.rows import read_rows, write_rows
from learning.lookup import bind
from learning.samples.engine_protocol import Generation
from learning.solvers.reward_tree import Attempt, grow_trees, list_pairs, rescored_pairs
from learning.toy_tasks.circuits import circuits
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "verirl.yaml"


@cache
def stages():
    return load_recipe(RECIPE, profile="tiny").stages


def tree():
    """The options of the recipe's reward tree that say which pairs are kept."""
    options = bind(stages()["tree"].function).options
    return {name: options[name] for name in ("margin", "good", "bad")}


def test_an_attempt_is_worth_what_followed_from_it():
    parent = Attempt("x", 0.1, [Attempt("y", 0.6), Attempt("z", 0.8)])
    assert parent.score == pytest.approx(0.7)
    deep = Attempt("w", 0.0, [parent, Attempt("v", 0.3)])
    assert deep.score == pytest.approx(0.5)
    assert [node.text for node in deep.all()] == ["w", "x", "y", "z", "v"]


@pytest.mark.parametrize(("better", "worse", "kept"), [(0.9, 0.4, 1), (0.9, 0.6, 0), (0.7, 0.2, 0), (0.9, 0.0, 0)])
def test_pairs_are_far_apart_and_neither_hopeless(better, worse, kept):
    assert len(list_pairs([Attempt("i", better), Attempt("j", worse)], **tree())) == kept


def test_reflection_follows_failures_only_and_for_two_rounds_at_most():
    asked = []

    def attempt(tasks):
        asked.append([shown for _, shown in tasks])
        return [[Attempt(f"{shown or row}'", 0.1 if shown != "q''" else 0.9)] for row, shown in tasks]

    options = stages()["tree"].function.options
    roots = grow_trees(["p", "q"], attempt, reflect_below=options["reflect_below"], rounds=options["rounds"])
    assert asked == [[None, None], ["p'", "q'"], ["p''", "q''"]]
    assert [node.passed for node in roots[1][0].all()] == [0.1, 0.1, 0.9]
    assert roots[1][0].score == 0.9
    assert max(len(list(root.all())) for nodes in roots for root in nodes) == 3


def batch(probabilities, rewards, dropped=()):
    generations = [Generation([7], [float(torch.tensor(p, dtype=torch.float64).log())], "stop") for p in probabilities]
    made = single_turn([[1]], [generations]).with_paths(reward=torch.tensor(rewards, dtype=torch.float64))
    made = with_dropped(made, False)
    drop = torch.tensor([i in dropped for i in range(len(rewards))])
    return made.replaced(dropped=drop).with_tokens(advantage=torch.ones(len(rewards), dtype=torch.float64))


def test_alpha_and_beta():
    made = batch([0.1, 0.3], [0.6, 0.2])
    assert balance(made, "max").tolist() == pytest.approx([1.5, 1.5], abs=1e-12)
    assert balance(made, "min").tolist() == pytest.approx([0.5, 0.5], abs=1e-12)


def test_the_recipe_weighs_the_policy_term_by_alpha_and_the_kl_by_beta():
    algorithm = bind_algorithm(stages()["rounds-1-improved"], {"rewards.0.model": Path("judge")})
    made = with_weights(algorithm, batch([0.1, 0.3, 0.2], [0.6, 0.2, 0.4]), 0, 16)
    third = 1 / 3
    assert made.sampled("w").tolist() == pytest.approx([1.5 * third, 1.5 * third, third], abs=1e-12)
    want = [0.01 * 0.5 * third, 0.01 * 0.5 * third, 0.01 * third]
    assert made.sampled("w.0").tolist() == pytest.approx(want, abs=1e-12)
    left_out = with_weights(algorithm, batch([0.1, 0.3, 0.2], [0.6, 0.2, 0.4], dropped=[2]), 0, 16)
    assert left_out.sampled("w").tolist() == pytest.approx([0.75, 0.75, 0.0], abs=1e-12)


def test_rewards_below_zero_are_refused_and_zero_rewards_weigh_as_equal():
    with pytest.raises(StepError, match="below 0"):
        balance(batch([0.1, 0.3], [0.5, -0.1]), "max")
    assert balance(batch([0.2, 0.2], [0.0, 0.0]), "min").tolist() == pytest.approx([1.0, 1.0])


@pytest.fixture
def context(tiny_policy_folder, tmp_path):
    for name in ("prompts", "pairs"):
        (tmp_path / name).mkdir()
    write_rows(tmp_path / "prompts", "prompts", circuits(size=2, split="train", inputs=2))
    folders = {"model": tiny_policy_folder, "prompts": tmp_path / "prompts", "pairs": tmp_path / "pairs"}
    return SimpleNamespace(input=folders.get, output=folders.get, seed=0, num_threads=1, device="cpu")


def test_the_stage_writes_the_rescored_pairs(context, monkeypatch):
    def attempt(tasks):
        return [
            [Attempt("a", 0.0), Attempt("b", 0.9)] if shown is None else [Attempt("c", 0.25), Attempt("d", 0.5)]
            for _, shown in tasks
        ]

    monkeypatch.setattr("learning.solvers.reward_tree._sampling", lambda *_: attempt)
    result = rescored_pairs(context, reward=None, **tree())
    assert result == {"pairs": 4, "attempts": 8, "reflected": 2, "rescored": 2, "pass_rate": pytest.approx(1.65 / 4)}
    rows = read_rows(context.output("pairs"), "preference_pairs")
    pairs = [(r["chosen"][0]["content"], r["rejected"][0]["content"], round(r["margin"], 6)) for r in rows[:2]]
    # The attempt that failed, `a`, is worth what followed: 0.375; `d` at 0.5 is too near to 0.9.
    assert pairs == [("b", "a", 0.525), ("b", "c", 0.65)]


def test_a_model_that_hits_nothing_gives_no_pairs(context):
    with pytest.raises(StepError, match="no pair is far enough apart"):
        bind(stages()["tree"].function).at(0)(context, num_generations=2, max_completion_length=1, rounds=1)
