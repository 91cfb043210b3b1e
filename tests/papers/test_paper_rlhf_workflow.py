"""RLHF Workflow: best and worst of n form pairs, all rounds share one reference and all pairs so far, and the pairwise
model is symmetric.

Not shown: chat benchmarks.
"""

import json
import math
from pathlib import Path

import pytest
import torch

from flows.planning.compile import compile_recipe
from learning.data.rows import read_rows, write_rows
from learning.lookup import bind
from learning.preference.pair_losses import dpo
from learning.problems.comparisons import TEMPLATE, comparisons
from learning.rewards import pairwise
from learning.rewards.pairwise import judged
from lineage.layout import Layout
from schemas.recipe.load import load_recipe
from tasks.context import Context
from tasks.synthesize import make_pairs, run

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rlhf-workflow.yaml"


def tried(scores):
    return [
        {"id": "p", "text": str(i), "finished": True, "score": score, "metadata": "{}"}
        for i, score in enumerate(scores)
    ]


def test_the_best_is_paired_with_the_worst_and_equals_are_dropped():
    samples = load_recipe(RECIPE, profile="full").stages["rounds-1-samples"]
    assert samples.num_generations == 8
    (pair,) = make_pairs(samples, tried([0.1, 0.9, 0.4, 0.2]))
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("1", "0")
    assert pair["margin"] == pytest.approx(0.8)
    assert make_pairs(samples, tried([0.3] * 4)) == []


def test_samples_are_of_the_rounds_policy_and_the_reference_stays(tmp_path):
    """By keys: what round t samples from is what round t − 1 made, and the reference is one artifact throughout."""
    steps = {s.name: s for s in compile_recipe(load_recipe(RECIPE, profile="tiny"), Layout(tmp_path)).steps}
    for i in (1, 2, 3):
        now = "polite" if i == 1 else f"rounds-{i - 1}-tune"
        sampled, tuned = (steps[f"rounds-{i}-{n}"].identity["inputs"] for n in ("samples", "tune"))
        assert sampled["model"]["key"] == tuned["model"]["key"] == steps[now].key
        assert tuned["reference"]["key"] == steps["polite"].key
        before = steps["mix"] if i == 1 else steps[f"rounds-{i - 1}-samples"]
        assert sampled["earlier"]["key"] == before.key
        assert steps[f"rounds-{i}-samples"].settings["notes"] == {"round": i}
    assert len({steps[f"rounds-{i}-samples"].identity["inputs"]["model"]["key"] for i in (1, 2, 3)}) == 3


def test_the_loss_is_dpos():
    use = load_recipe(RECIPE, profile="tiny").stages["rounds-1-tune"].loss[0]
    loss = bind(use)
    assert loss.function is dpo
    zero = torch.zeros(1, dtype=torch.float64)
    assert loss(zero, zero, zero, zero).item() == pytest.approx(0.6931, abs=5e-5)
    assert loss(zero + 3, zero - 2, zero, zero).item() == pytest.approx(0.4741, abs=5e-5)
    assert loss(zero + 3, zero - 2, zero, zero).item() == pytest.approx(math.log1p(math.exp(-0.5)), abs=1e-15)


def rows(n):
    return [
        {
            "id": str(i),
            "prompt": [{"role": "user", "content": f"q{i}"}],
            "answer": None,
            "family": "f",
            "metadata": "{}",
        }
        for i in range(n)
    ]


def test_the_pairwise_model_is_fair_because_it_is_asked_in_both_orders(tiny_policy_folder):
    use = load_recipe(RECIPE, profile="tiny").stages["rounds-1-samples"].rewards[1]
    options = {k: v for k, v in use.options.items() if k != "judge"}
    scores = judged(rows(1) * 2, ["yes", "nope"], [0, 0], None, judge=tiny_policy_folder, **options)
    assert sum(scores) == pytest.approx(1, abs=1e-12)
    turned = judged(rows(1) * 2, ["nope", "yes"], [0, 0], None, judge=tiny_policy_folder, **options)
    assert turned == pytest.approx(scores[::-1], abs=1e-6)
    assert abs(scores[0] - 0.5) > 1e-3


def test_what_the_pairwise_model_learns_from_is_what_it_is_asked(tmp_path):
    stages = load_recipe(RECIPE, profile="tiny").stages
    asked, learnt = stages["rounds-1-samples"].rewards[1].options, stages["questions"].problems[0].options
    assert asked["template"] == learnt["template"]
    assert pairwise.TEMPLATE == TEMPLATE
    replies = {s: [{"role": "assistant", "content": s}] for s in ("chosen", "rejected")}
    write_rows(tmp_path, "preference_pairs", [rows(1)[0] | replies | {"margin": 1.0}])
    made = comparisons(data=tmp_path, template=learnt["template"])
    assert [(r["prompt"][0]["content"], r["answer"]) for r in made] == [
        ("q0\n1 chosen\n2 rejected", "1"),
        ("q0\n1 rejected\n2 chosen", "2"),
    ]
    assert len({r["id"] for r in made}) == 2


def test_pairs_of_all_rounds_are_kept_and_say_which_they_are_of(tmp_path, tiny_policy_folder):
    stages = load_recipe(RECIPE, profile="tiny").stages
    write_rows((prompts := folder(tmp_path, "prompts")), "prompts", rows(6))
    replies = {s: [{"role": "assistant", "content": s}] for s in ("chosen", "rejected")}
    write_rows((earlier := folder(tmp_path, "mix")), "preference_pairs", [rows(1)[0] | replies | {"margin": 1.0}])
    for i in (1, 2, 3):
        stage = stages[f"rounds-{i}-samples"].model_copy(
            update={"rewards": stages["choices"].rewards, "max_completion_length": 12, "min_margin": 0.05}
        )
        inputs = {"model": tiny_policy_folder, "prompts": prompts, "earlier": earlier}
        here = folder(tmp_path, str(i))
        run(stage, Context(inputs, here, here, seed=i))
        earlier = here / "outputs/preference_pairs"
    pair_rounds = [json.loads(row["metadata"]).get("round") for row in read_rows(earlier, "preference_pairs")]
    assert pair_rounds[0] is None
    assert pair_rounds[1:] == sorted(pair_rounds[1:])
    assert set(pair_rounds[1:]) == {1, 2, 3}


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name
