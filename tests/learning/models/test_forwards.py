"""bf16 and gradient_checkpointing on the packed forward pass, and how requests are shared by ranks."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from learning.data.examples import Example
from learning.generation.engines.torch import Engine
from learning.generation.replicas.shared_engine import split_requests
from learning.models import forwards
from learning.models.crossentropy import compute_packed_loss, compute_padded_loss
from learning.models.forwards import SCORES_PER_MLP, _costs_little, apply_compute_options, find_blocks
from learning.models.packed import pack
from learning.samples.engine_protocol import Request, Sampling
from schemas.stages.rl import Rl
from schemas.training import Training

ROWS = [Example([5, 9, 12, 7, 3, 8, 10], 2), Example([4, 6, 11], 1), Example([20, 5, 7, 13, 2], 3)]


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    saved = []

    def keep(tensor):
        saved.append(tensor.numel() if tensor.requires_grad or tensor.grad_fn is not None else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss(model, ROWS)
    value.backward()
    return float(value.detach()), {name: p.grad.clone() for name, p in model.named_parameters()}, sum(saved)


@pytest.mark.parametrize("loss", [compute_packed_loss, compute_padded_loss])
def test_blocks_computed_again_give_the_same_bits_and_keep_less(tiny_policy, loss):
    model = tiny_policy.model
    names = [name for name, _ in model.named_parameters()]
    value, plain, kept = gradients(model, loss)
    apply_compute_options(model, Training(max_steps=1, gradient_checkpointing=True))
    again, repeated, fewer = gradients(model, loss)
    assert again == value
    assert all(torch.equal(plain[name], repeated[name]) for name in names)
    assert fewer < 0.7 * kept
    assert [name for name, _ in model.named_parameters()] == names
    assert len(find_blocks(model)) == 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_long_passes_recompute_feed_forward_blocks_and_keep_less(tiny_policy, checkpointing, monkeypatch):
    model = tiny_policy.model
    apply_compute_options(model, Training(max_steps=1, gradient_checkpointing=checkpointing))
    value, plain, kept = gradients(model, compute_packed_loss)
    monkeypatch.setattr(forwards, "SCORES_PER_MLP", 0)
    monkeypatch.setattr(forwards, "MLP_ROWS", 4)
    again, repeated, fewer = gradients(model, compute_packed_loss)
    assert again == pytest.approx(value, abs=1e-5)
    for name, gradient in plain.items():
        torch.testing.assert_close(repeated[name], gradient, atol=1e-6, rtol=0)
    assert fewer < 0.8 * kept
    assert not any("forward" in vars(block.mlp) for block in find_blocks(model))


def test_feed_forward_blocks_are_recomputed_only_where_attention_costs_far_more():
    mlp, config = torch.nn.Linear(64, 64, bias=False), SimpleNamespace(hidden_size=32)
    enough = SCORES_PER_MLP * 100 * 64 * 64 // (2 * 32)
    assert _costs_little(mlp, config, 100, enough)
    assert not _costs_little(mlp, config, 100, enough - 1)
    assert not _costs_little(mlp, SimpleNamespace(**vars(config), sliding_window=16), 100, enough)
    paths = pack([[1] * 5, [1] * 3, [1] * 2], [-1, 0, 1]).layout
    assert paths.all_scores == sum(range(1, 11))


def test_bfloat16_computes_over_float32_weights_in_copies_too(tiny_policy):
    model = tiny_policy.model
    value, plain, _ = gradients(model, compute_packed_loss)
    apply_compute_options(model, Training(max_steps=1, bf16=True, gradient_checkpointing=True))
    half, rough, _ = gradients(model, compute_packed_loss)
    assert half != value
    assert half == pytest.approx(value, rel=1e-2)
    for name, gradient in plain.items():
        assert rough[name].dtype == torch.float32
        assert float((rough[name] - gradient).norm() / gradient.norm()) < 0.05
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    assert float(compute_packed_loss(copy, ROWS).detach()) != half
    assert gradients(model, compute_packed_loss)[0] == half


def test_what_is_sampled_in_bfloat16_has_the_trainers_probabilities(tiny_policy):
    """Engine and trainer round differently in bfloat16, but both compute in it."""
    apply_compute_options(tiny_policy.model, Training(max_steps=1, bf16=True))
    [made] = Engine(tiny_policy).generate([Request([5, 6, 7], 4, seed=1)], Sampling(1.0, 6))
    for one in made:
        row = Example([5, 6, 7, *one.token_ids], 3)
        assert sum(one.logprobs) == pytest.approx(
            -float(compute_packed_loss(tiny_policy.model, [row]).detach()), abs=0.3
        )


def test_bf16_over_weights_in_bfloat16_is_refused():
    with pytest.raises(ValueError, match="over float32 weights"):
        Training(max_steps=1, bf16=True, dtype="bfloat16")


def test_ranks_share_requests_whole_or_sample_by_sample():
    many = [Request([i], 3, seed=i) for i in range(5)]
    assert [index for index, _ in split_requests(many, 2)] == [0, 1, 2, 3, 4]
    one = Request([1], 5, seed=7, first=10)
    parts = [request for _, request in split_requests([one], 2)]
    assert [(p.first, p.n, p.seed) for p in parts] == [(10, 2, 7), (12, 3, 7)]
    assert [request.n for _, request in split_requests([Request([1], 2, seed=0)], 4)] == [1, 1]


def test_a_replayed_route_is_not_computed_again():
    words = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["answers.exact"], "max_steps": 1}
    words |= {"advantage": ["center"], "ratio": "token", "policy_loss": "clipped", "loss_aggregation": "sequence_mean"}
    with pytest.raises(ValueError, match="recomputes blocks"):
        Rl.model_validate({**words, "routing_replay": True, "gradient_checkpointing": True})
