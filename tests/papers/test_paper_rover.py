"""Random Policy Valuation is Enough for LLM Reasoning with Verifiable Rewards: target, loss and gradient have the exact
values.

Not shown: the gain in diversity at 8B.
"""

from functools import cache
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.algorithm.policy_losses.policy_gradient import clipped
from learning.batch.batch_layout import single_turn
from learning.samples.engine_protocol import Generation
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rover.yaml"
DOUBLE = {"dtype": torch.float64}


@cache
def algorithm():
    return bind_algorithm(load_recipe(RECIPE, profile="tiny").stages["trained"], {})


def surrogate():
    return algorithm().policy_loss


def columns(q, value, advantage, path=None, place=None):
    """Tokens whose Q and whose uniform mean of Q are given; old log-probabilities are −1 and −3."""
    size = len(q)
    return {
        "lp_T": (torch.tensor(q, **DOUBLE) - 1).requires_grad_(),
        "lp_prox_T": torch.full((size,), -1.0, **DOUBLE),
        "lp_mean_T": (torch.tensor(value, **DOUBLE) - 3).requires_grad_(),
        "lp_mean_prox_T": torch.full((size,), -3.0, **DOUBLE),
        "advantage_T": torch.tensor(advantage, **DOUBLE),
        "path_T": torch.tensor(path or [0] * size),
        "place_T": torch.tensor(place or list(range(size))),
    }


def test_the_reward_is_centred_and_there_is_no_critic_and_no_kl():
    made = single_turn([[1]], [[Generation([7, 8], [-1.0, -1.0], "stop") for _ in range(4)]])
    made = with_dropped(made.with_paths(reward=torch.tensor([1.0, 1.0, 0.0, 0.0], **DOUBLE)), False)
    advantages = with_advantages(algorithm(), made, 0).sampled("advantage")
    assert advantages.tolist() == [0.5] * 4 + [-0.5] * 4  # not ±1: no deviation
    assert not algorithm().loss_terms
    stage = load_recipe(RECIPE, profile="tiny").stages["trained"]
    assert (stage.critic, stage.policy_loss.options) == (None, {"rho": 1.0})


def test_target_is_the_centred_reward_plus_the_uniform_mean_of_the_next_q():
    # At the second state Q is 0.4 and −0.2 over two words: the uniform mean is 0.1, under (0.9, 0.1) it is 0.34.
    view = columns([0.3, 0.4], [7.0, (0.4 - 0.2) / 2], [0.5, 0.5])
    loss = surrogate().ask(0, view)
    assert loss.tolist() == pytest.approx([(0.3 - 0.6) ** 2, (0.4 - 0.5) ** 2], abs=1e-12)
    assert loss[0].item() == pytest.approx(0.09, abs=1e-12)
    under_the_policy = (0.3 - (0.5 + 0.9 * 0.4 + 0.1 * -0.2)) ** 2
    assert abs(loss[0].item() - under_the_policy) > 0.1


def test_no_gradient_flows_through_the_target():
    view = columns([0.3, 0.4], [7.0, 0.1], [0.5, 0.5])
    loss = surrogate().ask(0, view).sum()
    lp, mean = torch.autograd.grad(loss, (view["lp_T"], view["lp_mean_T"]), allow_unused=True)
    assert lp.tolist() == pytest.approx([2 * (0.3 - 0.6), 2 * (0.4 - 0.5)], abs=1e-12)
    assert mean is None or not mean.any()


def test_the_next_token_is_the_paths_own_whatever_the_order():
    # Two paths, their tokens interleaved and out of order.
    path, place = [3, 1, 3, 1, 3], [1, 0, 0, 1, 2]
    view = columns([0.0] * 5, [0.1, 0.2, 0.3, 0.4, 0.5], [1.0, -1.0, 1.0, -1.0, 1.0], path, place)
    target = torch.tensor([1.5, -0.6, 1.1, -1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(surrogate().ask(0, view), target.square(), atol=1e-12, rtol=0)


def test_a_ratio_of_five_still_learns_where_ppo_has_stopped():
    log_five = torch.tensor(5.0, dtype=torch.float64).log().item()
    view = columns([log_five], [0.0], [3.0])
    (rover,) = torch.autograd.grad(surrogate().ask(0, view).sum(), view["lp_T"])
    assert rover.item() == pytest.approx(2 * (log_five - 3.0), abs=1e-12)
    log_ratio = torch.tensor([log_five], dtype=torch.float64, requires_grad=True)
    (ppo,) = torch.autograd.grad(clipped(log_ratio, view["advantage_T"]).sum(), log_ratio)
    assert ppo.item() == 0.0


def test_the_loop_measures_the_mean_over_the_vocabulary(tiny_policy):
    from learning.models.packed import pack, packed_statistics

    packed = pack([[5, 6, 7], [8, 9]], [-1, 0])
    statistics = packed_statistics(tiny_policy.model, packed, followed=("lp", "lp_mean"))
    with torch.no_grad():
        logp = tiny_policy.model(torch.tensor([[5, 6, 7, 8, 9]])).logits[0].log_softmax(-1)
    want = torch.cat([torch.zeros(1), logp[:-1].mean(-1)])
    torch.testing.assert_close(statistics["lp_mean"], want, atol=1e-4, rtol=0)
