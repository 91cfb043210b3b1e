from itertools import chain

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from learning.generation.engines.context_room import check_room
from learning.generation.engines.token_sampling import draw
from learning.generation.engines.torch import Engine
from learning.models.policy import Policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError

PROMPTS = [[5, 6, 7], [9], [4, 8, 15, 16, 23, 42, 3, 2, 30], [11, 12], [7, 7, 7, 7, 7, 7]]
REQUESTS = [Request(ids, 4, seed) for seed, ids in enumerate(PROMPTS)]


def logprobs(model, ids, temperature):
    """Of every token after the first, from one full forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def gap(model, requests, answers, temperature):
    """Largest difference between the engine's log-probabilities and those of a full forward pass."""
    gaps = []
    for request, generations in zip(requests, answers, strict=True):
        for g in generations:
            full = logprobs(model, request.prompt_ids + g.token_ids, temperature)[len(request.prompt_ids) - 1 :]
            gaps.append((full - torch.tensor(g.logprobs)).abs().max())
    return float(max(gaps))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_trap_07_logprobs_equal_a_full_forward_pass(tiny_policy, temperature):
    requests = [Request(r.prompt_ids, 4 if temperature else 1, r.seed) for r in REQUESTS]
    answers = Engine(tiny_policy, max_slots=7).generate(requests, Sampling(temperature, 24))
    assert gap(tiny_policy.model, requests, answers, temperature or 1.0) < 1e-5


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
def test_llama_and_grouped_queries(tiny_policy, key_value_heads):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=64,
        eos_token_id=1,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    answers = Engine(Policy(model, tiny_policy.tokenizer, 64)).generate(REQUESTS, Sampling(1.0, 16))
    assert gap(model, REQUESTS, answers, 1.0) < 1e-5


def test_greedy_equals_transformers(tiny_policy):
    requests = [Request(ids, 1, 0) for ids in PROMPTS]
    answers = Engine(tiny_policy).generate(requests, Sampling(0.0, 20))
    for request, (g,) in zip(requests, answers, strict=True):
        out = tiny_policy.model.generate(
            torch.tensor([request.prompt_ids]),
            attention_mask=torch.ones(1, len(request.prompt_ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=20,
            pad_token_id=0,
        )
        assert out[0, len(request.prompt_ids) :].tolist() == g.token_ids


@pytest.mark.parametrize("max_slots", [1, 3, 16])
def test_a_sample_does_not_depend_on_its_batch(tiny_policy, max_slots):
    sampling = Sampling(1.0, 24)
    whole = Engine(tiny_policy).generate(REQUESTS, sampling)
    refilled = Engine(tiny_policy, max_slots=max_slots).generate(REQUESTS, sampling)
    assert [[g.token_ids for g in gs] for gs in whole] == [[g.token_ids for g in gs] for gs in refilled]
    alone = Engine(tiny_policy).generate([REQUESTS[2]], sampling)[0]
    assert [g.token_ids for g in alone] == [g.token_ids for g in whole[2]]


def test_a_longer_limit_continues_the_same_samples(tiny_policy):
    short = Engine(tiny_policy).generate(REQUESTS, Sampling(1.0, 6))
    long = Engine(tiny_policy).generate(REQUESTS, Sampling(1.0, 12))
    for one, other in zip(chain(*short), chain(*long), strict=True):
        assert one.token_ids == other.token_ids[:6]


def test_trap_20_samples_of_a_group_differ_and_a_rerun_is_bitwise_equal(tiny_policy):
    requests = [Request([5, 6, 7], 64, 3), Request([5, 6, 7], 64, 4)]
    first = Engine(tiny_policy, max_slots=32).generate(requests, Sampling(1.0, 16))
    long = [tuple(g.token_ids) for gs in first for g in gs if len(g.token_ids) > 4]
    assert len(set(long)) == len(long) > 100
    assert Engine(tiny_policy, max_slots=32).generate(requests, Sampling(1.0, 16)) == first


def test_stop_token_is_included_once_and_ends_a_sample(tiny_policy):
    eos = tiny_policy.tokenizer.eos_token_id
    answers = Engine(tiny_policy, max_slots=8).generate([Request([5, 6], 200, 1)], Sampling(2.0, 60))[0]
    stopped = [g for g in answers if g.finish == "stop"]
    assert len(stopped) > 20
    assert all(g.token_ids.count(eos) == 1 and g.token_ids[-1] == eos for g in stopped)
    assert all(eos not in g.token_ids and len(g.token_ids) == 60 for g in answers if g.finish == "length")
    assert all(len(g.logprobs) == len(g.token_ids) for g in answers)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_follow_the_softmax(tiny_policy, temperature):
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=6,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=16,
        initializer_range=0.5,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    answers = Engine(Policy(model, tiny_policy.tokenizer, 16), max_slots=4000).generate(
        [Request([3, 2], 4000, 9)], Sampling(temperature, 1)
    )[0]
    with torch.no_grad():
        wanted = (model(torch.tensor([[3, 2]])).logits[0, -1].double() / temperature).softmax(-1).numpy()
    seen = np.bincount([g.token_ids[0] for g in answers], minlength=6)
    assert chisquare(seen, wanted / wanted.sum() * 4000).pvalue > 0.01


def test_trap_21_new_weights_are_sampled_from_after_sync_of_a_prompt_known_before(tiny_policy):
    engine = Engine(tiny_policy)
    before = engine.generate(REQUESTS, Sampling(0.7, 12))
    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    engine.sync(1)
    after = engine.generate(REQUESTS, Sampling(0.7, 12))
    assert [g.token_ids for g in before[0]] != [g.token_ids for g in after[0]]
    assert gap(tiny_policy.model, REQUESTS, after, 0.7) < 1e-5


def test_the_model_is_left_as_it_was(tiny_policy):
    tiny_policy.model.train()
    before = tiny_policy.model.config._attn_implementation
    Engine(tiny_policy).generate(REQUESTS[:1], Sampling(1.0, 2))
    assert tiny_policy.model.training
    assert tiny_policy.model.config._attn_implementation == before


def test_what_does_not_fit_is_refused(tiny_policy):
    with pytest.raises(StepError, match="do not fit its 128; lower max_completion_length or drop long"):
        Engine(tiny_policy).generate([Request([5] * 100, 1, 0)], Sampling(1.0, 29))
    with pytest.raises(StepError, match="a stop sequence is empty"):
        Engine(tiny_policy).generate([Request([5], 1, 0)], Sampling(1.0, 2, stop=((),)))
    with pytest.raises(
        StepError, match=r"lower max_completion_length, drop .* in a curate stage or raise `max_model_len`$"
    ):
        check_room(Request([], 1, 0), Sampling(), engine="other", length=9, longer="raise `max_model_len`")
    assert Engine(tiny_policy).generate([], Sampling()) == []


def test_draw_inverts_the_distribution_and_never_takes_the_impossible():
    logp = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).log().expand(6, 5)
    uniform = torch.tensor([0.0, 0.1, 0.2499999, 0.25, 0.9, 1 - 2.0**-53], dtype=torch.float64)[:, None]
    assert draw(logp, uniform).tolist() == [1, 1, 1, 3, 3, 3]
    assert 0 <= int(draw(torch.full((1, 5), float("nan")), uniform[:1])) < 5
