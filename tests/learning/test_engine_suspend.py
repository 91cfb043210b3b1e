"""Breaks in a completion, temperatures of single requests, stop sequences, processors and entropies."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from learning.generation.engines.token_sampling import entropy_of, pick
from learning.generation.engines.torch import Engine
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from schemas.stages.rl import Rl

PROMPTS = [[5, 6, 7], [9], [4, 8, 15, 16, 23, 42, 3, 2, 30]]
REQUESTS = [Request(ids, 3, seed) for seed, ids in enumerate(PROMPTS)]
WHOLE = Sampling(1.3, 20, entropy=True)


def taken_up(request, number, tokens):
    """The request that continues sample `number` after its first tokens."""
    return replace(request, n=1, first=number, begun=tuple(tokens))


def full_logp(model, ids, temperature=1.0):
    """Log-probabilities of the whole vocabulary after every token but the last, from one forward pass (L−1, V)."""
    with torch.no_grad():
        return (model(torch.tensor([ids])).logits[0, :-1].float() / temperature).log_softmax(-1)


@pytest.mark.parametrize("window", [1, 3, 7, 19])
def test_a_sample_taken_up_again_becomes_what_it_would_have_been(tiny_policy, window):
    engine = Engine(tiny_policy, max_slots=4)
    whole = engine.generate(REQUESTS, WHOLE)
    open_ = [(r, i) for r, request in enumerate(REQUESTS) for i in range(request.n)]
    tokens = {key: [] for key in open_}
    logprobs, entropies, rounds = {key: [] for key in open_}, {key: [] for key in open_}, 0
    while open_:
        asked = [taken_up(REQUESTS[r], i, tokens[r, i]) for r, i in open_]
        made = list(chain(*engine.generate(asked, replace(WHOLE, window=window))))
        for key, g in zip(open_, made, strict=True):
            assert len(g.token_ids) == window or g.finish != "suspended"
            tokens[key] += g.token_ids
            logprobs[key] += g.logprobs
            entropies[key] += g.entropies
            if g.finish != "suspended":
                assert g.finish == whole[key[0]][key[1]].finish
        open_ = [key for key, g in zip(open_, made, strict=True) if g.finish == "suspended"]
        rounds += 1
    assert rounds == -(-20 // window)
    for (r, i), ids in tokens.items():
        assert ids == whole[r][i].token_ids
        assert logprobs[r, i] == pytest.approx(whole[r][i].logprobs, abs=1e-5)
        assert entropies[r, i] == pytest.approx(whole[r][i].entropies, abs=1e-5)


def test_the_first_stream_may_be_any(tiny_policy):
    engine = Engine(tiny_policy)
    four = engine.generate([Request([5, 6], 4, 3)], Sampling(1.0, 12))[0]
    last = engine.generate([Request([5, 6], 2, 3, first=2)], Sampling(1.0, 12))[0]
    assert [g.token_ids for g in last] == [g.token_ids for g in four[2:]]


def test_a_target_suspends_what_is_left(tiny_policy):
    asked = [Request([5, 6, 7], 24, 0)]
    whole = Engine(tiny_policy).generate(asked, Sampling(4.0, 60))[0]
    lengths = sorted(len(g.token_ids) for g in whole)
    assert lengths[3] < lengths[4]
    some = Engine(tiny_policy).generate(asked, Sampling(4.0, 60, target=4))[0]
    assert sum(g.finish != "suspended" for g in some) == 4
    for cut, g in zip(some, whole, strict=True):
        assert cut.token_ids == g.token_ids[: lengths[3]]
        assert (cut.finish == "suspended") == (len(g.token_ids) > lengths[3])
    # Three slots: most of the queue was never begun, and says so.
    few = Engine(tiny_policy, max_slots=3).generate(asked, Sampling(4.0, 60, target=2))[0]
    assert sum(g.finish != "suspended" for g in few) == 2
    assert sum(g.token_ids == [] for g in few) >= 6
    assert all(g.token_ids == w.token_ids[: len(g.token_ids)] for g, w in zip(few, whole, strict=True))


def test_a_begun_completion_counts_in_its_length(tiny_policy):
    begun = (7, 8, 9)
    (g,) = Engine(tiny_policy).generate([Request([5, 6], 1, 0, begun=begun)], Sampling(0.0, 5))[0]
    assert len(g.token_ids) == len(g.logprobs) == 2
    want = full_logp(tiny_policy.model, [5, 6, 7, 8, 9, *g.token_ids])
    assert g.token_ids == want[-2:].argmax(-1).tolist()
    with pytest.raises(StepError, match="3 tokens of a completion exist, of 3 at most"):
        Engine(tiny_policy).generate([Request([5, 6], 1, 0, begun=begun)], Sampling(0.0, 3))


def test_requests_have_temperatures_of_their_own(tiny_policy):
    engine = Engine(tiny_policy, max_slots=5)
    asked = [Request([5, 6, 7], 2, 1, temperature=t) for t in (None, 0.0, 0.5, 2.0)]
    mixed = engine.generate(asked, Sampling(0.7, 16))
    for request, got in zip(asked, mixed, strict=True):
        temperature = 0.7 if request.temperature is None else request.temperature
        alone = engine.generate([Request([5, 6, 7], 2, 1)], Sampling(temperature, 16))[0]
        assert [g.token_ids for g in got] == [g.token_ids for g in alone]
        for g in got:
            ids = [5, 6, 7, *g.token_ids]
            logp = full_logp(tiny_policy.model, ids, temperature or 1.0)[2:]
            want = logp.gather(1, torch.tensor(g.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(g.logprobs), want, atol=1e-5, rtol=0)
    assert mixed[1][0].token_ids == mixed[1][1].token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.6])
def test_entropies_are_those_of_the_distribution_sampled_from(tiny_policy, temperature):
    (g,) = Engine(tiny_policy).generate([Request([5, 6], 1, 4)], Sampling(temperature, 12, entropy=True))[0]
    logp = full_logp(tiny_policy.model, [5, 6, *g.token_ids], temperature or 1.0)[1:].double()
    assert g.entropies == pytest.approx((-(logp.exp() * logp).sum(-1)).tolist(), abs=1e-5)
    (plain,) = Engine(tiny_policy).generate([Request([5, 6], 1, 4)], Sampling(temperature, 12))[0]
    assert (plain.token_ids, plain.entropies) == (g.token_ids, [])


def test_entropy_of_certain_and_impossible_tokens():
    logp = torch.tensor([[0.0, -torch.inf, -torch.inf], [np.log(0.5), np.log(0.5), -torch.inf]])
    assert entropy_of(logp).tolist() == pytest.approx([0.0, np.log(2)], abs=1e-7)


def test_stop_sequences_end_a_completion_and_stay_in_it(tiny_policy):
    asked = [Request([5, 6], 60, 1)]
    whole = Engine(tiny_policy).generate(asked, Sampling(1.0, 30))[0]
    single = max(range(3, 60), key=lambda t: sum(t in g.token_ids[2:-1] for g in whole))
    pair = next(tuple(g.token_ids[6:8]) for g in whole if len(g.token_ids) > 10 and single not in g.token_ids[:9])
    stop = ((single,), pair)
    cut = Engine(tiny_policy, max_slots=9).generate(asked, Sampling(1.0, 30, stop=stop))[0]

    def end(ids):
        for k in range(1, len(ids) + 1):
            if ids[k - 1] == single or tuple(ids[max(k - 2, 0) : k]) == pair:
                return k
        return None

    for short, g in zip(cut, whole, strict=True):
        at = end(g.token_ids)
        assert short.token_ids == g.token_ids[:at]
        assert short.finish == (g.finish if at is None else "stop")
    assert any(tuple(g.token_ids[-2:]) == pair for g in cut)
    assert any(g.token_ids[-1] == single for g in cut)
    # A sequence may begin before the break.
    request = Request([5, 6], 1, 1, begun=(pair[0],))
    before = Engine(tiny_policy).generate([request], Sampling(1.0, 30, processor=only(pair[1]), stop=(pair,)))[0][0]
    assert (before.token_ids, before.finish) == ([pair[1]], "stop")


def only(token):
    """A processor that leaves one token."""

    def process(logits_BV, place_B):
        masked = torch.full_like(logits_BV, -torch.inf)
        masked[:, token] = logits_BV[:, token]
        return masked

    return process


def test_trap_08_what_a_processor_leaves_is_what_is_reported(tiny_policy):
    def top_5(logits_BV, place_B):
        bound_B1 = logits_BV.topk(5).values[:, -1:]
        return logits_BV.masked_fill(logits_BV < bound_B1, -torch.inf)

    asked = [Request(ids, 6, 2) for ids in PROMPTS]
    made = Engine(tiny_policy, max_slots=7).generate(asked, Sampling(0.7, 16, processor=top_5, entropy=True))
    for request, got in zip(asked, made, strict=True):
        for g in got:
            logp = full_logp(tiny_policy.model, request.prompt_ids + g.token_ids, 0.7)[len(request.prompt_ids) - 1 :]
            kept = logp.topk(5)
            left = (kept.values - kept.values.logsumexp(-1, keepdim=True)).double()
            at = (kept.indices == torch.tensor(g.token_ids)[:, None]).nonzero()
            assert len(at) == len(g.token_ids)
            want = left[at[:, 0], at[:, 1]]
            torch.testing.assert_close(torch.tensor(g.logprobs).double(), want, atol=1e-5, rtol=0)
            assert g.entropies == pytest.approx((-(left.exp() * left).sum(-1)).tolist(), abs=1e-5)


def test_a_processor_knows_the_place_of_a_token_across_a_break(tiny_policy):
    seen = []

    def watch(logits_BV, place_B):
        seen.append(place_B.tolist())
        return logits_BV

    request = Request([5, 6], 1, 0, begun=(7, 8))
    Engine(tiny_policy).generate([request, Request([5], 1, 0)], Sampling(0.0, 4, processor=watch))
    assert seen[0] == [2, 0]
    assert seen[1] == [3, 1]


def test_pick_mixes_greedy_and_drawn_rows():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(3, 3)
    uniform = torch.tensor([[0.0], [0.0], [0.999]], dtype=torch.float64)
    picked = pick(logits, torch.tensor([0.0, 1.0, 0.5]), uniform, greedy=True, place_B=torch.zeros(3).long())
    assert picked.token_B.tolist() == [2, 0, 2]
    want = [logits[0].log_softmax(-1)[2], logits[0].log_softmax(-1)[0], (logits[0] / 0.5).log_softmax(-1)[2]]
    assert picked.logprob_B.tolist() == pytest.approx([float(w) for w in want], abs=1e-7)


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "min_new_tokens"])
def test_trap_08_a_recipe_cannot_cut_a_support_that_the_trainer_does_not_know(name):
    stage = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["answers.exact"], "max_steps": 1}
    parts = {"advantage": ["center"], "ratio": "token", "policy_loss": "clipped", "loss_aggregation": "token_mean"}
    assert Rl.model_validate({**stage, **parts}).temperature == 1.0
    with pytest.raises(ValidationError, match=name):
        Rl.model_validate({**stage, **parts, name: 1})
