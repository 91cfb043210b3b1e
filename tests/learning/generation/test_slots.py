"""Slots of the torch engine: columns that are added, sums that do not depend on other rows, passes that end early."""

import pytest
import torch
from torch.nn.functional import softmax
from transformers import AutoModelForCausalLM, DynamicCache, Lfm2Config

from learning.generation.engines import slot_attention, slots
from learning.generation.engines.kept_turns import KeptTurn, extend
from learning.generation.engines.running import Running
from learning.generation.engines.slot_attention import use_slot_attention
from learning.generation.engines.slots import Prefix, Slots, prefill
from learning.models.forwards import find_blocks
from learning.samples.engine_protocol import Request, Sampling
from tests.learning.generation.slot_models import FAMILIES, SHAPE, make_model

HEADS = 3


def make_slots(states_RHTD: torch.Tensor, lengths: list[int], step: int, monkeypatch) -> Slots:
    """Slots whose rows hold the first tokens of some keys and values, which are equal, and aim at the last of them."""
    monkeypatch.setattr(slots, "STEP", step)
    model = make_model("plain")
    made, prefix = Slots(model, len(lengths), 4 * max(lengths)), Prefix(model)
    prefix.pairs[0] = states_RHTD, states_RHTD
    length_X = torch.tensor(lengths)
    made.place(torch.arange(len(lengths)), prefix, torch.arange(len(lengths)), length_X)
    made.aim(length_X - 1)
    return made


@pytest.mark.parametrize("width", [8, 32, 128])
@pytest.mark.parametrize("window", [None, 20])
def test_attention_of_a_row_is_bit_identical_beside_longer_ones(monkeypatch, width, window):
    generator = torch.Generator().manual_seed(1)
    lengths = [1, 7, 64, 65, 130, 300, 900]
    states = torch.randn(7, HEADS, 900, width, generator=generator)
    query = torch.randn(7, HEADS, 1, width, generator=generator)
    together = slot_attention._attend_single(query, make_slots(states, lengths, 64, monkeypatch), window, 0.2)
    for row, length in enumerate(lengths):
        alone = make_slots(states[row : row + 1, :, :length], [length], 64, monkeypatch)
        got = slot_attention._attend_single(query[row : row + 1], alone, window, 0.2)
        assert torch.equal(got[0], together[row])
        first = max(0, length - window) if window else 0
        seen = states[row, :, first:length].double()
        weights = softmax(0.2 * query[row].double() @ seen.transpose(1, 2), -1)
        torch.testing.assert_close(got[0].double(), weights @ seen, atol=1e-6, rtol=0)


def test_what_an_earlier_sample_left_in_a_slot_is_not_seen(monkeypatch):
    """The second sample is shorter, and columns of the first stand after it."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(2, HEADS, 200, 16, generator=generator)
    query = torch.randn(1, HEADS, 1, 16, generator=generator)
    used = make_slots(states[:1], [200], 64, monkeypatch)
    prefix = Prefix(make_model("plain"))
    prefix.pairs[0] = states[1:], states[1:]
    used.place(torch.tensor([0]), prefix, torch.tensor([0]), torch.tensor([30]))
    used.aim(torch.tensor([29]))
    fresh = make_slots(states[1:], [30], 64, monkeypatch)
    assert torch.equal(*(slot_attention._attend_single(query, held, None, 0.2) for held in (used, fresh)))


def sample(model, step: int, monkeypatch):
    """Completions of a full and of a refilled batch, and the numbers of columns on the way."""
    monkeypatch.setattr(slots, "STEP", step)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 40, (n,), generator=generator).tolist() for n in (30, 1, 12, 25, 7)]
    requests, seen = [Request(ids, 3, 7 + i) for i, ids in enumerate(prompts)], set()
    with torch.inference_mode(), use_slot_attention(model):
        batch = Running(model, requests, Sampling(1.0, 60), (0, 1), 6)
        while batch.fill():
            batch.advance()
            seen.add(batch.slots.num_columns)
        return batch.results(), sorted(seen)


@pytest.mark.parametrize("family", FAMILIES)
def test_added_columns_change_no_bit(family, monkeypatch):
    model = make_model(family)
    grown, columns = sample(model, 2, monkeypatch)
    at_once, all_columns = sample(model, 128, monkeypatch)
    assert len(columns) > 4
    assert all_columns == [128]
    assert columns[-1] <= 90, "as many as the longest prompt and its completion have, and no more"
    assert grown == at_once


def test_memory_for_all_columns_is_taken_once(monkeypatch):
    states = torch.randn(2, HEADS, 40, 16, generator=torch.Generator().manual_seed(1))
    held = make_slots(states, [40, 9], 8, monkeypatch)
    (keys, _), place = held.slabs[0], held.slabs[0][0].data_ptr()
    before = [keys[row, :, :length].clone() for row, length in enumerate((40, 9))]
    held.reserve(100)
    grown = held.slabs[0][0]
    assert grown.shape == (2, HEADS, 112, 16)
    assert grown.data_ptr() == place
    for row, kept in enumerate(before):
        assert torch.equal(grown[row, :, : kept.shape[1]], kept)
    held.reserve(150, keeps=False)
    assert held.slabs[0][0].shape[2] == 160
    assert held.bias_SL.isinf().all(), "nothing is left in the slots"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_ends_the_pass_after_the_keys_and_values_of_the_last_layer(family):
    """The feed-forward block of the last layer is not computed, for prompts and for new tokens after kept ones."""
    model = make_model(family)
    ids = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), use_slot_attention(model):
        truth = DynamicCache(config=model.config)
        model.base_model(input_ids=ids, past_key_values=truth, use_cache=True)
        calls: list[int] = []
        for number, block in enumerate(find_blocks(model)):
            block.mlp.register_forward_hook(lambda *_, number=number: calls.append(number))
        prefix = prefill(model, ids)
        assert calls == [0]
        assert len(prefix.pairs) == 2
        for layer, (keys, values) in prefix.pairs.items():
            # transformers keeps no more than the window
            seen = truth.layers[layer].keys.shape[2]
            assert torch.equal(keys[:, :, -seen:], truth.layers[layer].keys)
            assert torch.equal(values[:, :, -seen:], truth.layers[layer].values)
        kept = [
            KeptTurn(row[:5].tolist(), {at: (k[i, :, :5], v[i, :, :5]) for at, (k, v) in prefix.pairs.items()})
            for i, row in enumerate(ids)
        ]
        made = extend(model, kept, [row[5:].tolist() for row in ids])
        assert calls == [0, 0]
        assert set(made.pairs) == {0, 1}


def test_a_model_with_states_computes_all_layers():
    shape = {name: size for name, size in SHAPE.items() if name != "head_dim"}
    config = Lfm2Config(**shape, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    calls = []
    for block in find_blocks(model):
        block.feed_forward.register_forward_hook(lambda *_: calls.append(1))
    with torch.inference_mode(), use_slot_attention(model):
        prefix = prefill(model, torch.tensor([[3, 4, 5]]))
    assert len(calls) == 2
    assert [layer for layer, *_ in prefix.list_states()] == [0]
