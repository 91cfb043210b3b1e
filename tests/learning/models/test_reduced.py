"""The check of a model's forward passes runs a few layers of each kind, and finds what differs in any of them."""

from types import MethodType

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

from learning.generation.engines.slot_attention import explain_slot_misfit
from learning.models.forwards import find_blocks, recompute_block
from learning.models.packed import choose_forward
from learning.models.reduced import HEAD_ROWS, count_distinct_layers, reduced

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
