"""AReaL: requests are admitted by number and version, stale tokens have weight c, and running completions continue
under new weights.

Not shown: 2.77 times the speed on GPUs.
"""

import math
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_dropped, with_factors
from learning.batch.batch_layout import single_turn
from learning.samples.engine_protocol import Generation
from schemas.recipe.load import load_recipe
from tests.papers.loops import letters

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "areal.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
DOUBLE = {"dtype": torch.float64}


def gradient_weight(name, behav, prox, pi, advantage):
    """Derivative of minus the recipe's loss of one token by log π."""
    made = single_turn([[1]], [[Generation([7], [math.log(behav)], "stop")]])
    made = with_dropped(made.with_paths(reward=torch.ones(1, **DOUBLE)), False)
    made = made.with_tokens(lp_prox=torch.tensor([prox], **DOUBLE).log(), advantage=torch.tensor([advantage], **DOUBLE))
    algorithm = bind_algorithm(STAGES[name], {})
    made = with_factors(algorithm, made, 0, seed=0)
    lp_T = torch.tensor([math.log(pi)], **DOUBLE, requires_grad=True)
    columns = view_columns(made, {"lp": lp_T})
    columns["lp_T"] = lp_T
    columns["log_ratio_T"] = algorithm.ratio.ask(0, columns)
    loss_T = algorithm.policy_loss.ask(0, columns)
    if algorithm.importance_correction:
        loss_T = loss_T * columns["factor_T"]
    return -float(torch.autograd.grad(loss_T.sum(), lp_T)[0])


def test_the_decoupled_objective_learns_where_the_coupled_one_has_clipped():
    assert gradient_weight("trained", 0.2, 0.3, 0.3, 1.0) == pytest.approx(1.5, abs=1e-9)
    assert gradient_weight("coupled", 0.2, 0.3, 0.3, 1.0) == 0.0


@pytest.mark.parametrize(
    ("pi", "advantage", "want"), [(0.36, 1.0, 1.8), (0.37, 1.0, 0.0), (0.23, -1.0, 0.0), (0.25, -1.0, -1.25)]
)
def test_the_clip_is_around_the_proximal_policy(pi, advantage, want):
    """u = π/0.3 within 0.8 and 1.2 has the gradient c·u·A = π/π_behav·A; beyond, none."""
    assert gradient_weight("trained", 0.2, 0.3, pi - 1e-9, advantage) == pytest.approx(want, abs=1e-6)


def admitted(submitted, size, version, eta):
    """The paper's rule: one more request may begin while floor((N − 1)/B) ≤ i + η, N counting it."""
    while (submitted + 1 - 1) // size <= version + eta:
        submitted += 1
    return submitted


@pytest.mark.parametrize("eta", [0, 1, 4])
def test_as_many_requests_are_admitted_as_the_rule_says(scripted, loop, eta):
    assert (admitted(0, 4, 0, 0), admitted(0, 4, 0, 1)) == (4, 8)
    policy = scripted(dict(zip("abcdefgh", (2, 40, 3, 9, 2, 5, 17, 4), strict=True)))
    run = loop(STAGES["trained"], policy, letters("abcdefgh"), num_groups=4, max_staleness=eta, steps_per_update=3)
    submitted, submit = [], run.source.submit

    def counted(requests, sampling):
        submitted.extend(requests)
        submit(requests, sampling)

    run.source.submit = counted
    for version in range(6):
        run.iterate()
        assert len(submitted) == admitted(0, 4, version, eta) == 4 * (version + eta + 1)


def test_an_interrupted_sample_keeps_its_tokens_and_knows_both_versions(scripted, loop):
    lengths = {"a": 3, "b": 3, "c": 3, "d": 12}
    policy = scripted(lengths)
    run = loop(
        STAGES["trained"],
        policy,
        letters("abcd"),
        num_groups=4,
        max_staleness=2,
        ahead=1,
        steps_per_update=2,
        max_steps=4,
    )

    def train(samples):
        policy.model.sharpness = 2.0 + run.step + 1

    trajectories = [t for _ in range(4) for t in run.iterate(train)]
    long = [t for t in trajectories if t.row["id"] == "3d"]
    assert {len(t.completion_ids) for t in long} == {12}
    first = long[0]
    assert len(set(first.versions)) >= 2
    assert first.versions == sorted(first.versions)
    assert len(first.logprobs) == len(first.versions) == 12
    size = policy.model.size
    for version, lp in zip(first.versions, first.logprobs, strict=True):
        sharpness = 2.0 + version
        assert lp == pytest.approx(sharpness - math.log(math.exp(sharpness) + size - 1), abs=1e-5)
    assert len(trajectories) == 16
    assert sum(len(t.completion_ids) for t in trajectories) == sum(lengths[t.row["id"][1]] for t in trajectories)


@pytest.mark.parametrize("eta", [0, 1, 3])
def test_no_token_is_older_than_the_bound(scripted, loop, eta):
    policy = scripted(dict(zip("abcdefgh", (2, 40, 3, 9, 2, 5, 17, 4), strict=True)))
    run = loop(STAGES["trained"], policy, letters("abcdefgh"), num_groups=4, max_staleness=eta, steps_per_update=4)
    ages = [step - v for step in range(6) for t in run.iterate() for v in t.versions]
    assert (min(ages), max(ages)) == (0, eta)
