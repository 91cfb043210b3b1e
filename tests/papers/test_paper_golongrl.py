"""GoLongRL: TMN-Reweight puts the problems of a task on one scale and weights them by difficulty, with the exact
values.

Not shown: real long contexts.
"""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.batch.columns import of_rewards
from learning.lookup import bind
from learning.samples.sample import Sample
from schemas.recipe.load import load_recipe
from schemas.use import ProblemsUse

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "golongrl.yaml"


@cache
def algorithm(stage="trained"):
    return bind_algorithm(load_recipe(RECIPE, profile="tiny").stages[stage], {})


def batch(*groups):
    """Groups of (family, rewards), one token each."""
    samples = [
        Sample(
            {"id": f"p{g}", "family": family}, g, "policy", [1, g], [5], [-1.0], "stop", "", scores={"r": r}, reward=r
        )
        for g, (family, rewards) in enumerate(groups)
        for r in rewards
    ]
    return with_dropped(forest(samples), False)


NATURAL = [
    ("lookup", "12", ["12", "13", "1"], [1.0, 0.0, 0.0]),
    ("choice", "a", ["a", "b", "a b"], [1.0, 0.0, 0.0]),
    ("listing", "a b", ["b a", "a", "c"], [1.0, 2 / 3, 0.0]),
    ("total", "30", ["30", "30.0", "3"], [1.0, 1.0, 0.0]),
    ("extraction", "2-5", ["2-5", "4-7", "8-9"], [1.0, 1 / 3, 0.0]),
    ("matching", "a b", ["c b a", "a", "c"], [1.0, 0.5, 0.0]),
    ("ranking", "a b c", ["a b c", "a"], [1.0, 3 / (3 + 2 / math.log2(3) + 1 / 2)]),
    ("ordering", "a b c", ["a b c", "a c b", "c b a"], [1.0, 2 / 3, 0.0]),
    ("summary", "a b c", ["a b c", "a x c", "c b a", "a a b c", "x"], [1.0, 2 / 3, 1 / 3, 6 / 7, 0.0]),
]


@pytest.mark.parametrize(("family", "answer", "written", "scores"), NATURAL)
def test_each_kind_of_question_has_its_natural_metric(family, answer, written, scores):
    (use,) = load_recipe(RECIPE, profile="tiny").stages["trained"].rewards
    rows = [{"id": "x", "answer": answer, "family": family}] * len(written)
    assert bind(use).ask(0, {"rows": rows, "completions": written}) == pytest.approx(scores)


@pytest.mark.parametrize("profile", ["tiny", "full"])
def test_all_nine_kinds_are_trained_and_measured_by_the_same_metrics(profile):
    stages = load_recipe(RECIPE, profile=profile).stages
    for uses in (stages["lessons"].problems, stages["exercises"].problems, stages["report"].tasks):
        assert [use.options["kind"] for use in uses] == [family for family, *_ in NATURAL]
    rewards = {name: stages[name].rewards[0].model_dump() for name in ("trained", "baseline", "report")}
    assert rewards["trained"] == rewards["baseline"] == rewards["report"]


@pytest.mark.parametrize("profile", ["tiny", "full"])
def test_documents_have_200_to_400_tokens_which_the_models_read_whole(profile):
    """A character is a token."""
    stages = load_recipe(RECIPE, profile=profile).stages
    for use in stages["report"].tasks:
        rows = bind(ProblemsUse(use=use.use, **use.options | {"size": 20}))()
        lengths = [len(row["prompt"][0]["content"]) for row in rows]
        assert min(lengths) >= 200
        assert max(lengths) <= 400
        assert max(len(row["answer"]) for row in rows) < stages["report"].max_completion_length
        for name in ("base", "cold_start"):
            assert max(lengths) + stages["report"].max_completion_length <= stages[name].max_length


def operated(made, **options):
    operation = algorithm().advantage[0]
    return operation.function(of_rewards(made), made, **{**operation.options, "epsilon": 0.0, **options}).values_X


def test_one_scale_for_all_problems_of_a_task():
    made = batch(("sums", (0.0, 1.0)), ("sums", (0.4, 0.6)))
    got = operated(made, gamma=None).tolist()
    assert got == pytest.approx([-0.980581, 0.980581, -0.196116, 0.196116], abs=1e-6)
    grpo = with_advantages(algorithm("baseline"), made, 0).sampled("advantage")
    assert grpo.tolist() == pytest.approx([-0.7071, 0.7071, -0.7071, 0.7071], abs=1e-3)


def test_tasks_do_not_share_a_scale():
    made = batch(("sums", (0.0, 1.0)), ("ranking", (0.4, 0.6)))
    half = 1 / math.sqrt(2)
    assert operated(made, gamma=None).tolist() == pytest.approx([-half, half, -half, half], abs=1e-12)
    both = operated(made, gamma=None, by="batch").tolist()
    assert both == pytest.approx([-0.980581, 0.980581, -0.196116, 0.196116], abs=1e-6)


def test_difficulty_weighs_positives_up_and_negatives_down():
    made = batch(("sums", (1.0, 0.0, 0.0, 0.0)))
    ratio = operated(made, gamma=1.0, smoothing=0.0) / operated(made, gamma=None)
    assert ratio.tolist() == pytest.approx([1.284025, 0.778801, 0.778801, 0.778801], abs=1e-6)
    easy = batch(("sums", (1.0, 1.0, 1.0, 0.0)))
    ratio = operated(easy, gamma=1.0, smoothing=0.0) / operated(easy, gamma=None)
    assert ratio.tolist() == pytest.approx([0.778801] * 3 + [1.284025], abs=1e-6)


def test_a_reward_at_the_groups_mean_does_not_pass():
    # One of three passes, p = 1/3: e^(1/6) above the mean, e^(-1/6) below; the one in the middle has no advantage.
    made = batch(("sums", (0.0, 0.5, 1.0)))
    whole, plain = operated(made, gamma=1.0, smoothing=0.0).tolist(), operated(made, gamma=None).tolist()
    assert [whole[0] / plain[0], whole[2] / plain[2]] == pytest.approx([math.exp(-1 / 6), math.exp(1 / 6)])
    assert whole[1] == 0.0


def test_smoothing_moves_the_bar_towards_the_tasks_mean():
    # Means 0.75 and 0.25, the task's 0.5: with the bar half-way, 0.625, the 0.7 of the first group passes too.
    made = batch(("sums", (0.6, 0.9, 0.7, 0.8)), ("sums", (0.0, 0.5, 0.0, 0.5)))
    plain = operated(made, gamma=None)
    own = operated(made, gamma=1.0, smoothing=0.0) / plain
    mixed = operated(made, gamma=1.0, smoothing=0.5) / plain
    assert own[:4].tolist() == pytest.approx([1.0] * 4)
    up, down = math.exp(-0.25), math.exp(0.25)
    assert mixed[:4].tolist() == pytest.approx([down, up, down, up])


def test_groups_without_differences_give_exactly_nothing():
    made = batch(("sums", (0.1, 0.1, 0.1)), ("ranking", (0.3,)), ("sums", (0.0, 1.0)))
    got = operated(made, gamma=1.0).tolist()
    assert got[:4] == [0.0] * 4
    assert all(got[4:])
    alone = operated(batch(("sums", (0.1, 0.1))), gamma=1.0)
    assert alone.tolist() == [0.0, 0.0]


def test_order_of_rows_does_not_matter_and_tokens_come_too_late():
    made = batch(("a", (0.0, 1.0, 0.5)), ("b", (0.2, 0.9)), ("a", (0.4, 0.6)))
    order = [5, 2, 0, 6, 3, 1, 4]
    torch.testing.assert_close(operated(made.take(order)), operated(made)[order], atol=1e-15, rtol=0)
    operation = algorithm().advantage[0].at(0)
    with pytest.raises(ValueError, match="before broadcast_to_tokens"):
        operation(replace(of_rewards(made), unit="token"), made)
