"""Sizes of architectures without a formula beside real passes of their own models."""

import pytest
import torch
from transformers import AutoConfig

from learning.memory_model.estimate import Trained, estimate_training
from learning.memory_model.forward import Pass, Precision
from learning.memory_model.shape import Adapters, Shape
from learning.models.adapters import attach_adapters
from learning.models.packed import choose_forward, pack, packed_logprobs
from learning.models.traced_memory import TracedForward, trace_shape
from schemas.errors import StepError
from schemas.training import LoRA
from tests.learning.models.shard_ranks import Counter
from tests.models.families import make_family

WIDE = {"hidden_size": 96, "intermediate_size": 192, "head_dim": 24}
KINDS = {
    "mamba2": {"num_heads": 8, "head_dim": 24, "chunk_size": 32},
    "falcon_h1": {"mamba_d_ssm": 192, "mamba_d_head": 24, "mamba_chunk_size": 32},
    "qwen3_next": {"moe_intermediate_size": 96},
    "lfm2": {},
    "gemma2": {},
    "deepseek_v3": {"head_dim": 8},
}
ROWS, LENGTH = 6, 96
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed


def make_pair(kind):
    """Return a real model and the shape of its configuration."""
    model = make_family(kind, **{**WIDE, **KINDS[kind]})
    return model, trace_shape(AutoConfig.for_model(**model.config.to_dict()).to_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_pass_takes_what_is_predicted_within_30_percent(kind):
    model, shape = make_pair(kind)
    assert shape.parameters == model.num_parameters()
    choose_forward(model)
    packed = pack([[3 + (row + i) % 50 for i in range(LENGTH)] for row in range(ROWS)], [-1] * ROWS)
    with Counter() as counter:
        packed_logprobs(model, packed)[0].sum().backward()
    tokens = Pass(((ROWS, LENGTH),), needed=ROWS * (LENGTH - 1))
    phases = estimate_training(
        Trained(shape, shape.parameters, shape.parameters, optim="adafactor"),
        TracedForward(shape, tokens, Precision(on_cpu=True)),
        1,
    )
    predicted = max(phase.total for phase in phases)
    assert counter.peak / 1.3 <= predicted <= counter.peak * 1.3, predicted / counter.peak


def test_adapters_are_counted():
    model, shape = make_pair("lfm2")
    count = sum(
        p.numel() for p in attach_adapters(model, LoRA(use_peft=True, lora_r=4)).parameters() if p.requires_grad
    )
    assert shape.adapter_parameters(Adapters(4)) == count


def test_a_cache_grows_with_keys_and_not_with_states():
    _, hybrid = make_pair("lfm2")
    _, states = make_pair("mamba2")
    assert hybrid.cache_bytes(64, 4) - hybrid.cache_bytes(32, 4) == 32 * 2 * 2 * 24 * 4  # one of two layers attends
    assert states.cache_bytes(64, 4) == states.cache_bytes(32, 4) > 0


def test_long_rows_follow_from_two_lengths():
    _, shape = make_pair("lfm2")
    exact = shape.measure(1000, 4, False).kept
    assert shape.kept_bytes(1000, 4, frozen=False) == pytest.approx(exact, rel=0.02)


def test_what_cannot_be_measured_is_named():
    with pytest.raises(StepError, match="memory of a no_such_type model is not known"):
        trace_shape({"model_type": "no_such_type"})
    assert isinstance(make_pair("lfm2")[1], Shape)
    assert torch.get_default_device().type == "cpu"
