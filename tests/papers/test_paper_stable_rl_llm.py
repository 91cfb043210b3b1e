"""Stabilizing Reinforcement Learning with LLMs: MiniRL's coefficient has the exact value, and routing replay works on a
real mixture of experts.

Not shown: collapse curves of a 30B mixture. Unsure: the bound of the importance weight; the recipe uses 5. A rollout
engine's record (R3) is replayed here from a bfloat16 copy; the loop itself records the trainer's routing (R2).
"""

from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_factors, with_weights
from learning.batch.batch_layout import single_turn
from learning.batch.routing_replay import add_expert_column, find_routers, record_routing, replay_routing
from learning.models.packed import packed_statistics
from learning.samples.engine_protocol import Generation
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "stable-rl-llm.yaml"
DOUBLE = {"dtype": torch.float64}


@cache
def algorithm():
    return bind_algorithm(load_recipe(RECIPE, profile="tiny").stages["trained"], {})


def coefficient(behav, old, now, advantage, lengths=(1,)):
    """What multiplies ∇log π at the first token, by the recipe's ratio, correction, surrogate and weights."""
    size = sum(lengths)
    logs = {name: torch.full((size,), p, **DOUBLE).log() for name, p in (("behav", behav), ("prox", old))}
    generations = [Generation([7] * n, logs["behav"][:n].tolist(), "stop") for n in lengths]
    made = with_dropped(single_turn([[1]], [generations]), False)
    made = made.with_tokens(lp_prox=logs["prox"], advantage=torch.full((size,), advantage, **DOUBLE))
    made = with_weights(algorithm(), with_factors(algorithm(), made, 0), 0, 8)
    lp = torch.full((size,), now, **DOUBLE).log().requires_grad_()
    supplies = {
        "lp_T": lp,
        "lp_prox_T": logs["prox"],
        "lp_behav_T": logs["behav"],
        "advantage_T": made.sampled("advantage"),
    }
    supplies["log_ratio_T"] = algorithm().ratio.ask(0, supplies)
    loss = (algorithm().policy_loss.ask(0, supplies) * made.sampled("factor") * made.sampled("w")).sum()
    return -torch.autograd.grad(loss, lp)[0]


def test_the_coefficient_is_the_ratio_to_the_engine_times_the_advantage():
    assert coefficient(0.5, 0.40, 0.44, 1.0).tolist() == pytest.approx([0.88], abs=1e-12)


def test_the_mask_goes_by_the_trainers_ratio_and_the_sign():
    assert coefficient(0.5, 0.40, 0.52, 1.0).tolist() == [0.0]
    assert coefficient(0.5, 0.40, 0.52, -1.0).tolist() == pytest.approx([-1.04], abs=1e-12)
    assert coefficient(0.5, 0.40, 0.30, -1.0).tolist() == [0.0]
    assert coefficient(0.5, 0.40, 0.30, 1.0).tolist() == pytest.approx([0.6], abs=1e-12)


def test_there_is_no_division_by_length():
    assert coefficient(0.5, 0.40, 0.44, 1.0, lengths=(4,)).tolist() == pytest.approx([0.88] * 4, abs=1e-12)
    two = coefficient(0.5, 0.40, 0.44, 1.0, lengths=(1, 3))
    assert two.tolist() == pytest.approx([0.44] * 4, abs=1e-12)


def test_the_importance_weight_has_a_bound():
    assert coefficient(0.01, 0.40, 0.40, 1.0).tolist() == pytest.approx([5.0], abs=1e-12)


def mixture():
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def batch():
    generator = torch.Generator().manual_seed(1)
    made = [
        Generation(torch.randint(5, 60, (n,), generator=generator).tolist(), [-4.0] * n, "stop") for n in (4, 7, 2, 9)
    ]
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], **DOUBLE)
    return with_dropped(single_turn([[8, 9, 10]], [made]).with_paths(reward=rewards), False)


def perturbed(model):
    torch.manual_seed(5)
    moved = deepcopy(model)
    with torch.no_grad():
        for router in find_routers(moved):
            router.weight.add_(0.05 * torch.randn_like(router.weight))
    return moved


def test_replay_uses_exactly_the_rollouts_experts_after_the_router_has_moved():
    model, made = mixture(), batch()
    rollout = deepcopy(model).to(torch.bfloat16)
    record = add_expert_column(made, rollout, max_tokens=100).tokens["experts"]
    moved = perturbed(model)
    with replay_routing(moved, record), record_routing(moved) as used:
        packed_statistics(moved, made.packed)
    assert torch.equal(torch.stack(used, 1), record)
    with record_routing(moved) as free:
        packed_statistics(moved, made.packed)
    assert (torch.stack(free, 1) != record).any(-1).any(-1).sum() >= 1


def test_the_loss_of_the_loop_follows_the_record():
    model, made = mixture(), batch()
    made = add_expert_column(made, model, max_tokens=100)
    lp = packed_statistics(model, made.packed)["lp"][made.sampled_T].detach().double()
    made = with_advantages(algorithm(), made.with_tokens(lp_prox=lp), 0)
    made = with_weights(algorithm(), with_factors(algorithm(), made, 0), 0, 16)
    plain = type(made)(
        made.segments, made.parents, made.leaves, {k: v for k, v in made.tokens.items() if k != "experts"}, made.paths
    )
    moved = perturbed(model)
    losses = {}
    for name, of in (("replayed", made), ("free", plain)):
        moved.zero_grad()
        loss, columns = micro_loss(algorithm(), moved, of, step=0, temperature=1.0)
        loss.backward()
        losses[name] = columns["lp_T"]
        assert all(router.weight.grad.abs().sum() > 0 for router in find_routers(moved))
    with replay_routing(moved, made.tokens["experts"]):
        want = packed_statistics(moved, made.packed)["lp"][made.sampled_T].detach()
    torch.testing.assert_close(losses["replayed"], want, atol=1e-6, rtol=0)
    assert (losses["free"] - want).abs().max() > 1e-4


def test_the_recipe_turns_it_on():
    stages = load_recipe(RECIPE, profile="tiny").stages
    assert (stages["trained"].routing_replay, stages["free"].routing_replay) == (True, False)
