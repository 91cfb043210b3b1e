"""The check of a model's forward passes runs a few layers of each kind, and finds what differs in any of them."""

from types import MethodType

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

from learning.generation.engines.slot_attention import explain_slot_misfit
from learning.models.forwards import find_blocks, recompute_block
from learning.models.packed import choose_forward
from learning.models.reduced import COARSE_MEAN, HEAD_ROWS, count_distinct_layers, in_float32, is_close, reduced

SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def make_model(layers=12, config=LlamaConfig, **more):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**SIZES, num_hidden_layers=layers, **more)).eval()


def record_layers(model):
    """Layers that run, in order, by their index."""
    seen = []
    for place, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda *_, place=place: seen.append(place))
    return seen


def test_the_checks_run_four_of_twelve_equal_layers():
    model = make_model()
    seen = record_layers(model)
    assert choose_forward(model).body == "forest"
    assert seen == [0, 1, 2, 3] * 3
    assert explain_slot_misfit(model) == ""
    assert set(seen) == {0, 1, 2, 3}


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_restored(tied):
    model = make_model(tie_word_embeddings=tied)
    before, names = dict(model.named_parameters(remove_duplicate=False)), list(model.state_dict())
    with reduced(model):
        assert len(model.model.layers) == 4
        assert model(torch.tensor([[5, 299]])).logits.shape == (1, 2, HEAD_ROWS)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(model.state_dict()) == names
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_the_layers_reach_to_the_first_of_the_last_kind():
    kinds = ["sliding_attention"] * 5 + ["full_attention"] * 7
    assert count_distinct_layers(find_blocks(make_model(config=Gemma3TextConfig, layer_types=kinds))) == 6
    model = make_model()
    assert count_distinct_layers(find_blocks(model)) == 4
    model.model.layers[8].self_attn.scaling = 0.5
    assert count_distinct_layers(find_blocks(model)) == 9


def test_gradient_checkpointing_makes_no_other_kind_of_layer():
    model = make_model()
    for block in find_blocks(model)[:-1]:
        block.forward = MethodType(recompute_block, block)
    assert count_distinct_layers(find_blocks(model)) == 4


@pytest.mark.parametrize("layer", [0, 9])
def test_a_function_set_on_one_layer_is_checked(layer):
    model = make_model()
    attention = model.model.layers[layer].self_attn
    inner = attention.forward

    def forward(*args, **kwargs):
        hidden, weights = inner(*args, **kwargs)
        return (hidden if model.config._attn_implementation == "sdpa" else 2 * hidden), weights

    attention.forward = forward
    assert choose_forward(model).reason == "llama: its own forward gives other numbers"
    assert "gives other numbers" in explain_slot_misfit(model)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_in_bfloat16_are_converted_block_by_block_and_restored(tied):
    model = make_model(tie_word_embeddings=tied).bfloat16()
    before = {name: (p.clone(), p.data_ptr()) for name, p in model.named_parameters()}
    exact, ids = make_model(tie_word_embeddings=tied).bfloat16().float(), torch.arange(7)[None]
    counts = []
    for layer in model.model.layers:
        part = layer.mlp.gate_proj
        part.register_forward_hook(
            lambda *_: counts.append(sum(b.mlp.gate_proj.weight.dtype == torch.float32 for b in find_blocks(model)))
        )
    with torch.no_grad(), in_float32(model) as rounds:
        assert rounds
        logits = model(ids).logits
        assert model.model.layers[0].mlp.gate_proj.weight.dtype == torch.bfloat16
    assert counts == [1] * 12
    assert logits.dtype == torch.float32
    assert torch.equal(logits, exact(ids).logits)
    assert all(torch.equal(p, before[name][0]) for name, p in model.named_parameters())
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == {n: at for n, (_, at) in before.items()}
    with torch.no_grad():
        assert model(ids).logits.dtype == torch.bfloat16


def test_weights_are_restored_if_a_pass_fails():
    model = make_model(2).bfloat16()
    model.model.layers[1].mlp.forward = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError), in_float32(model):
        model(torch.arange(7)[None])
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_quantised_weights_and_float32_are_left_as_they_are():
    model = make_model(2)
    with in_float32(model) as rounds:
        assert not rounds
    model.bfloat16().model.layers[0].mlp.register_parameter(
        "packed", torch.nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    )
    with in_float32(model) as rounds:
        assert not rounds
        assert model(torch.arange(7)[None]).logits.dtype == torch.bfloat16


def test_what_is_equal_in_float32_may_differ_more_in_bfloat16():
    """As where sums cancel: all values are off by 3 %, which alone could be another attention as well."""
    truth = torch.ones(1000, dtype=torch.bfloat16)
    values, other_experts = truth * 1.03, truth.clone()
    other_experts[:5] *= 1.2
    assert COARSE_MEAN < 0.03
    assert not is_close(values, truth)
    assert is_close(values, truth, proven=True)
    assert not is_close(other_experts, truth)
    assert is_close(other_experts, truth, proven=True)
    assert not is_close(truth * 1.3, truth, proven=True)
    assert not is_close(values.float(), truth.float())
