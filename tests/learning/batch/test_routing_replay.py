"""Routing replay on real mixtures of experts: what is recorded is used, weights and gradients stay the router's."""

from contextlib import nullcontext

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

from learning.batch.batch_layout import single_turn
from learning.batch.routing_replay import add_expert_column, find_routers, record_routing, replay_routing
from learning.models.packed import packed_statistics
from learning.samples.engine_protocol import Generation
from schemas.errors import StepError

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}


def mixture(kind="mixtral"):
    torch.manual_seed(0)
    if kind == "mixtral":
        config = MixtralConfig(**SHAPE, num_local_experts=4)
    else:
        config = Qwen3MoeConfig(
            **SHAPE, num_experts=4, moe_intermediate_size=32, head_dim=8, norm_topk_prob=kind == "qwen"
        )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def batch():
    generator = torch.Generator().manual_seed(1)
    groups = [
        [Generation(torch.randint(5, 60, (n,), generator=generator).tolist(), [-1.0] * n, "stop") for n in ns]
        for ns in ((4, 7, 2), (5, 3))
    ]
    return single_turn([[8, 9, 10], [11, 12]], groups)


def logprobs(model, made, experts=None):
    with replay_routing(model, experts) if experts is not None else nullcontext():
        return packed_statistics(model, made.packed, followed=("lp",))["lp"]


def perturb(model, amount):
    torch.manual_seed(5)
    with torch.no_grad():
        for router in find_routers(model):
            router.weight.add_(amount * torch.randn_like(router.weight))


@pytest.mark.parametrize("kind", ["mixtral", "qwen", "qwen-unnormalised"])
def test_replaying_ones_own_choice_changes_nothing(kind):
    model, made = mixture(kind), batch()
    experts = add_expert_column(made, model, max_tokens=12).tokens["experts"]
    assert experts.shape == (len(made.tokens["learn"]), 2, 2)
    torch.testing.assert_close(logprobs(model, made, experts), logprobs(model, made), atol=1e-6, rtol=0)


def test_a_moved_router_chooses_others_and_replay_does_not():
    model, made = mixture(), batch()
    before = add_expert_column(made, model, max_tokens=100).tokens["experts"]
    perturb(model, 0.05)
    with record_routing(model) as own:
        free = logprobs(model, made)
    with replay_routing(model, before), record_routing(model) as kept:
        held = packed_statistics(model, made.packed, followed=("lp",))["lp"]
    assert (torch.stack(own, 1) != before).any()
    assert torch.equal(torch.stack(kept, 1), before)
    assert (free - held).abs().max() > 1e-4


def test_weights_and_gradient_are_the_routers_own():
    model, made = mixture(), batch()
    experts = add_expert_column(made, model, max_tokens=100).tokens["experts"]
    perturb(model, 0.05)
    for replay in (experts, None):
        model.zero_grad()
        logprobs(model, made, replay).sum().backward()
        assert all(router.weight.grad.abs().sum() > 0 for router in find_routers(model))
    # Swapping the two experts of every token swaps their weights with them.
    torch.testing.assert_close(
        logprobs(model, made, experts.flip(-1)), logprobs(model, made, experts), atol=1e-6, rtol=0
    )


def test_the_record_follows_its_tokens_into_every_part_of_a_batch():
    model, made = mixture(), add_expert_column(batch(), mixture(), max_tokens=100)
    whole = logprobs(model, made, made.tokens["experts"])
    part = made.take([4, 1])
    got = logprobs(model, part, part.tokens["experts"])[part.sampled_T]
    want = torch.cat([whole[made.sampled_T][made.path_T == p] for p in (1, 4)])
    assert sorted(got.tolist()) == pytest.approx(sorted(want.tolist()), abs=1e-5)


def test_hooks_do_not_outlive_their_block():
    model, made = mixture(), batch()
    plain = logprobs(model, made)
    wrong = torch.zeros(3, 2, 2, dtype=torch.long)
    with pytest.raises(StepError, match="a record of"):
        logprobs(model, made, wrong)
    assert torch.equal(logprobs(model, made), plain)


def test_dense_models_are_refused(tiny_policy):
    with pytest.raises(StepError, match="qwen3 has no routers"):
        find_routers(tiny_policy.model)
