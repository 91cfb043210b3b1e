"""Engine vllm against engine torch and against full forward passes, on vLLM itself."""

import copy
import random
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from learning.generation.engines.torch import Engine as TorchEngine
from learning.generation.engines.vllm import Engine
from learning.generation.weights.protocol import collect_weights
from learning.generation.weights.sync_check import measure_logprob_gap
from learning.models.policy import Policy, set_determinism
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
]
PROMPTS = [[5, 6, 7], [9], [4, 8, 15, 16, 23, 42, 3, 2, 30], [11, 12], [7, 7, 7, 7, 7, 7]]
REQUESTS = [Request(ids, 4, seed) for seed, ids in enumerate(PROMPTS)]
LONG = [(7 * i) % 50 for i in range(300)]
"""Longer than two blocks of vLLM's cache, which are of 128 tokens on a CPU."""


def changed(model, seed=1, scale=0.1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def logprobs(model, ids, temperature=1.0):
    """Of every token after the first, from one full forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def away(model, requests, answers, temperature=1.0):
    """Largest difference from a full forward pass."""
    gaps = [
        float(
            (
                logprobs(model, r.prompt_ids + g.token_ids, temperature)[len(r.prompt_ids) - 1 :]
                - torch.tensor(g.logprobs)
            )
            .abs()
            .max()
        )
        for r, made in zip(requests, answers, strict=True)
        for g in made
    ]
    return max(gaps)


def plain(answers):
    """Tokens and ends."""
    return [[(g.token_ids, g.finish) for g in made] for made in answers]


def only_even(logits_BV, place_B):
    """Forbids odd tokens at even places."""
    odd_V = torch.arange(logits_BV.shape[1]) % 2 == 1
    return logits_BV.masked_fill(odd_V & (place_B % 2 == 0)[:, None], float("-inf"))


def endless(logits_BV, place_B):
    """Forbids the end token, 1."""
    return logits_BV.index_fill(1, torch.tensor([1]), float("-inf"))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_trap_07_logprobs_are_those_of_the_sampling_distribution(wide_policy, temperature):
    answers = Engine(wide_policy).generate(REQUESTS, Sampling(temperature, 24))
    assert away(wide_policy.model, REQUESTS, answers, temperature or 1.0) < 1e-5


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, 24),
        Sampling(0.6, 24, entropy=True),
        Sampling(0.0, 20),
        Sampling(1.0, 24, stop=((7,), (3, 9))),
        Sampling(1.0, 24, window=5),
        Sampling(1.0, 24, entropy=True, processor=only_even),
    ],
    ids=["plain", "cold", "greedy", "stops", "window", "processor"],
)
def test_it_samples_what_engine_torch_samples(wide_policy, sampling):
    ours, theirs = (engine(wide_policy).generate(REQUESTS, sampling) for engine in (Engine, TorchEngine))
    assert plain(ours) == plain(theirs)
    for one, other in ((g, h) for a, b in zip(ours, theirs, strict=True) for g, h in zip(a, b, strict=True)):
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)
        assert one.entropies == pytest.approx(other.entropies, abs=1e-4)


@pytest.mark.parametrize("made", [LlamaConfig, Qwen2Config])
def test_other_models_with_heads_of_their_own_and_grouped_queries(wide_policy, made):
    torch.manual_seed(1)
    config = made(
        vocab_size=len(wide_policy.tokenizer),
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=wide_policy.tokenizer.eos_token_id,
        bos_token_id=None,
    )
    policy = Policy(AutoModelForCausalLM.from_config(config).eval(), wide_policy.tokenizer, 64)
    changed(policy.model)
    ours, theirs = (engine(policy).generate(REQUESTS, Sampling(1.0, 16)) for engine in (Engine, TorchEngine))
    assert plain(ours) == plain(theirs)
    assert away(policy.model, REQUESTS, ours) < 1e-5


def test_trap_08_what_a_processor_forbids_has_no_share_in_the_logprobs(wide_policy):
    answers = Engine(wide_policy).generate(REQUESTS, Sampling(1.0, 16, processor=only_even))
    for request, made in zip(REQUESTS, answers, strict=True):
        for g in made:
            assert all(token % 2 == 0 for token in g.token_ids[::2])
            with torch.no_grad():
                logits = wide_policy.model(torch.tensor([request.prompt_ids + g.token_ids])).logits[0]
            rows = logits[len(request.prompt_ids) - 1 : -1].clone()
            rows[0::2, 1::2] = float("-inf")
            kept = rows.log_softmax(-1).gather(1, torch.tensor(g.token_ids)[:, None])[:, 0]
            assert g.logprobs == pytest.approx(kept.tolist(), abs=1e-5)


def test_trap_20_a_sample_depends_on_its_stream_alone(wide_policy):
    engine, sampling = Engine(wide_policy), Sampling(1.0, 16)
    whole = engine.generate(REQUESTS, sampling)
    assert plain([engine.generate([r], sampling)[0] for r in REQUESTS]) == plain(whole)
    split = [replace(REQUESTS[0], n=1, first=i) for i in range(4)]
    assert [made[0].token_ids for made in engine.generate(split, sampling)] == [g.token_ids for g in whole[0]]
    assert len({tuple(g.token_ids) for made in whole for g in made}) == 20


@pytest.mark.parametrize("slots", [3, 256])
def test_few_places_and_little_memory_change_nothing(wide_policy, slots):
    """Room for 3 samples, or for 9 blocks of the 20 that are wanted: vLLM throws running ones out and begins anew."""
    engine = Engine(wide_policy, max_num_seqs=slots, kv_cache_gib=9 * 2**17 / 2**30)
    requests = [Request([*LONG[:110], r.seed], 4, r.seed) for r in REQUESTS]
    sampling = Sampling(1.0, 40, stop=((999,),))
    assert plain(engine.generate(requests, sampling)) == plain(TorchEngine(wide_policy).generate(requests, sampling))


def test_a_resumed_completion_equals_an_uninterrupted_one(wide_policy):
    engine, sampling = Engine(wide_policy), Sampling(1.0, 20, entropy=True)
    whole = engine.generate(REQUESTS, sampling)
    begun = engine.generate(REQUESTS, replace(sampling, window=7))
    for request, first, unbroken in zip(REQUESTS, begun, whole, strict=True):
        for i, (part, expected) in enumerate(zip(first, unbroken, strict=True)):
            if part.finish == "suspended":
                rest = Request(request.prompt_ids, 1, request.seed, i, tuple(part.token_ids))
                (((more,),),) = (engine.generate([rest], sampling),)
                assert part.token_ids + more.token_ids == expected.token_ids
                assert part.logprobs + more.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
                assert more.finish == expected.finish


def test_a_target_suspends_what_is_left(wide_policy):
    answers = Engine(wide_policy).generate(REQUESTS, Sampling(1.0, 24, target=6))
    ends = [g.finish for made in answers for g in made]
    assert ends.count("suspended") == 20 - sum(end != "suspended" for end in ends) <= 14
    whole = Engine(wide_policy).generate(REQUESTS, Sampling(1.0, 24))
    for part, all_of_it in zip(answers, whole, strict=True):
        for one, other in zip(part, all_of_it, strict=True):
            assert other.token_ids[: len(one.token_ids)] == one.token_ids


def test_trap_21_no_cached_prefix_survives_new_weights(wide_policy, monkeypatch):
    engine = Engine(wide_policy)
    assert measure_logprob_gap(engine, wide_policy, [LONG, LONG]) < 1e-5
    changed(wide_policy.model)
    engine.sync(1)
    assert measure_logprob_gap(engine, wide_policy, [LONG]) < 1e-5
    monkeypatch.setattr("learning.generation.engines.vllm_host.Host.forget", lambda host: None)
    changed(wide_policy.model, 2)
    engine.sync(2)
    assert measure_logprob_gap(engine, wide_policy, [LONG]) > 0.01  # what a forgotten reset would cost
    monkeypatch.undo()
    engine.sync(3)
    assert measure_logprob_gap(engine, wide_policy, [LONG]) < 1e-5


def test_trap_22_new_weights_give_new_outputs_and_the_very_same_log_probabilities(wide_policy):
    engine, sampling = Engine(wide_policy), Sampling(0.0, 12)
    before = engine.generate(REQUESTS, sampling)
    changed(wide_policy.model)
    engine.sync(1)
    after = engine.generate(REQUESTS, sampling)
    assert plain(before) != plain(after)
    assert away(wide_policy.model, REQUESTS, after) < 1e-5
    assert (engine.host.version, engine.last_gap < 1e-5) == (1, True)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (lambda name: True, "lacks lm_head.weight, model.embed_tokens.weight"),
        (lambda name: name == "lm_head.weight", r"lacks lm_head\.weight; "),
        (lambda name: "layers.1.self_attn.q_proj" in name, r"lacks model\.layers\.1\.self_attn\.q_proj\.weight; "),
        (lambda name: "norm" in name, r"lacks .* and \d+ more"),
    ],
    ids=["all", "tied head", "part of a fused layer", "norms"],
)
def test_trap_22_what_is_not_delivered_is_an_error(wide_policy, lost, message):
    engine = Engine(wide_policy)
    changed(wide_policy.model)
    engine.sync(1)
    some = [(name, tensor) for name, tensor in collect_weights(wide_policy.model).items() if not lost(name)]
    with pytest.raises(StepError, match=message):
        engine.deliver(some)
    assert measure_logprob_gap(engine, wide_policy, PROMPTS) < 1e-5  # and the next call delivers everything


def test_trap_22_a_sync_that_only_says_it_worked_is_an_error(wide_policy, monkeypatch):
    engine = Engine(wide_policy)
    engine.ready()
    changed(wide_policy.model)
    names = list(collect_weights(wide_policy.model))
    report = {"given": names, "missing": [], "proven": names, "wrong": []}
    monkeypatch.setattr(Engine, "_sent", lambda engine, host, weights: report)
    engine.sync(1)
    with pytest.raises(StepError, match=r"after the sync of version 1 .* differ from the policy's by"):
        engine.generate(REQUESTS, Sampling(1.0, 4))


def test_what_can_be_read_back_is_compared(wide_policy, monkeypatch):
    engine = Engine(wide_policy)
    host = engine.ready()
    report = engine._sent(host, collect_weights(wide_policy.model).items())
    assert report["wrong"] == report["missing"] == []
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= set(report["proven"])
    other = copy.deepcopy(wide_policy.model)
    changed(other)
    monkeypatch.setattr(Engine, "_sent", lambda *args: {**report, "wrong": ["model.norm.weight"]})
    with pytest.raises(StepError, match=r"did not take the new weights: model\.norm"):
        engine.deliver(collect_weights(other).items())
    monkeypatch.undo()
    engine.deliver(collect_weights(wide_policy.model).items())


def test_two_policies_share_vllm_and_keep_their_weights(wide_policy):
    other = Policy(copy.deepcopy(wide_policy.model), wide_policy.tokenizer, wide_policy.max_length)
    changed(other.model)
    first, second = Engine(wide_policy), Engine(other)
    for _ in range(2):
        assert measure_logprob_gap(first, wide_policy, PROMPTS) < 1e-5
        assert measure_logprob_gap(second, other, PROMPTS) < 1e-5
    assert first.host is second.host


def test_adapters_are_added_on_the_way(wide_policy):
    from learning.models.adapters import attach_adapters
    from schemas.training import LoRA

    policy = Policy(attach_adapters(wide_policy.model, LoRA(use_peft=True, lora_r=4)), wide_policy.tokenizer, 512)
    changed(policy.model, 3, 0.1)
    assert measure_logprob_gap(Engine(policy), policy, PROMPTS) < 1e-4


def test_another_type_is_close(wide_policy):
    engine = Engine(wide_policy, dtype="bfloat16")
    assert 1e-6 < measure_logprob_gap(engine, wide_policy, PROMPTS) < 0.3


def test_the_rest_of_the_process_does_not_notice(wide_policy):
    def drawn():
        return random.random(), float(np.random.rand()), torch.rand(3).tolist()  # noqa: NPY002 — the global one is meant

    set_determinism(3, 1)
    expected = drawn()
    set_determinism(3, 1)
    engine = Engine(wide_policy, max_num_seqs=2)
    engine.generate(REQUESTS[:1], Sampling(1.0, 4))
    engine.sync(1)
    engine.generate(REQUESTS[:1], Sampling(1.0, 4))
    assert drawn() == expected
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (1, True)


def test_other_users_cannot_connect(wide_policy):
    Engine(wide_policy).ready()
    listening = [c for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip for c in listening} <= {"127.0.0.1"}


def test_flight_suspends_and_takes_up_again_while_weights_change(wide_policy):
    engine, sampling = Engine(wide_policy), Sampling(1.0, 30, processor=endless)
    whole = {(r, i): g for r, made in enumerate(engine.generate(REQUESTS, sampling)) for i, g in enumerate(made)}
    flight = engine.flight(sampling)
    for ticket, request in enumerate(REQUESTS):
        flight.add(ticket, request)
    for _ in range(5):
        assert flight.step() == []
    out = flight.suspend([1, 3])
    assert ([ticket for ticket, _ in out], flight.running) == ([1] * 4 + [3] * 4, 12)
    for ticket, g in out:
        assert (g.finish, len(g.token_ids)) == ("suspended", 5)
        assert whole[ticket, g.sample].token_ids[:5] == g.token_ids
        flight.add(ticket, Request(PROMPTS[ticket], 1, REQUESTS[ticket].seed, g.sample, tuple(g.token_ids)))
    flight.step()
    changed(wide_policy.model)
    engine.sync(7)
    ended = []
    while flight.running:
        ended += flight.step()
    assert len(ended) == 20
    begun = {(ticket, g.sample): g for ticket, g in out}
    for ticket, g in ended:
        old = begun.get((ticket, g.sample))
        before = old.token_ids if old else []
        assert [v for v, _ in g.versions] == [0, 7]
        assert sum(n for _, n in g.versions) == len(g.token_ids)
        assert g.versions[0][1] + len(before) == 6
        under_old = g.versions[0][1]
        assert whole[ticket, g.sample].token_ids[:6] == before + g.token_ids[:under_old]
        ids = PROMPTS[ticket] + before + g.token_ids
        with torch.no_grad():
            rows = endless(wide_policy.model(torch.tensor([ids])).logits[0, :-1], None).log_softmax(-1)
        now = rows.gather(1, torch.tensor(ids[1:])[:, None])[-len(g.token_ids) + under_old :, 0]
        assert g.logprobs[under_old:] == pytest.approx(now.tolist(), abs=1e-5)


def test_flights_of_one_engine_are_in_the_air_together(wide_policy):
    """With samplings of their own, and a whole call in between."""
    engine = Engine(wide_policy)
    samplings = [Sampling(1.0, 12), Sampling(1.0, 9, entropy=True), Sampling(0.7, 12, processor=only_even)]
    alone = [engine.generate(REQUESTS, sampling) for sampling in samplings]
    flights = [engine.flight(sampling) for sampling in samplings]
    for flight in flights:
        for ticket, request in enumerate(REQUESTS):
            flight.add(ticket, request)
    made = [{(ticket, g.sample): g for ticket, g in flight.step()} for flight in flights]
    assert plain(engine.generate(REQUESTS, samplings[0])) == plain(alone[0])
    while any(flight.running for flight in flights):
        for completions, flight in zip(made, flights, strict=True):
            completions.update({(ticket, g.sample): g for ticket, g in flight.step()})
    for completions, expected, sampling in zip(made, alone, samplings, strict=True):
        assert plain([[completions[r, i] for i in range(4)] for r in range(5)]) == plain(expected)
        assert all(bool(g.entropies) == sampling.entropy for g in completions.values())
    other = Policy(copy.deepcopy(wide_policy.model), wide_policy.tokenizer, wide_policy.max_length)
    flights[0].add(0, REQUESTS[0])
    flights[0].step()
    with pytest.raises(StepError, match="another policy's completions are in flight"):
        Engine(other).generate(REQUESTS, Sampling(1.0, 8))
    del flights, flight  # what nobody holds any more is in nobody's way
    assert len(Engine(other).generate(REQUESTS, Sampling(1.0, 8))) == 5


def test_unsupported_requests_are_refused_before_sampling(wide_policy, tiny_policy):
    engine = Engine(wide_policy, max_model_len=64)
    with pytest.raises(StepError, match="a prompt of 0 tokens"):
        engine.generate([Request([], 1, 0)], Sampling(1.0, 8))
    with pytest.raises(StepError, match=r"a prompt of 60 tokens and a completion of up to 8 do not fit its 64"):
        engine.generate([Request(LONG[:60], 1, 0)], Sampling(1.0, 8))
    with pytest.raises(StepError, match="nothing is left to sample"):
        engine.generate([Request([5], 1, 0, begun=(1, 2))], Sampling(1.0, 2))
    with pytest.raises(StepError, match="a stop sequence is empty"):
        engine.generate([Request([5], 1, 0)], Sampling(1.0, 2, stop=((),)))
    with pytest.raises(StepError, match=r"heads of 32, 64, .* numbers, this model has 4 of 8; take a model with"):
        Engine(tiny_policy).generate([Request([5], 1, 0)], Sampling(1.0, 2))
    with pytest.raises(StepError, match="vLLM could not start this model: "):
        Engine(wide_policy, kv_cache_gib=1e6).generate([Request([5], 1, 0)], Sampling(1.0, 2))


def test_without_the_package_the_message_says_what_to_install(wide_policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(StepError, match=r"pip install 'posttrain\[vllm\]'"):
        Engine(wide_policy, max_num_seqs=17).generate(REQUESTS, Sampling(1.0, 8))


def test_sleep_on_a_cpu_is_no_more_than_a_word(wide_policy):
    engine = Engine(wide_policy, sleep=True)
    first = engine.generate(REQUESTS, Sampling(1.0, 8))
    engine.sleep()
    assert engine.host.awake
    engine.wake()
    assert engine.generate(REQUESTS, Sampling(1.0, 8)) == first
