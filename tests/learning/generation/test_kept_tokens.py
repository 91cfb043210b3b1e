"""Kept tokens: which are sampled from, their records, and log-probabilities among them, in every engine and loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from learning.batch.batch_layout import single_turn
from learning.batch.micro_batches import compute_token_statistics, split_micro_batches, statistics_of
from learning.generation.engines.openai import check
from learning.generation.engines.own_cache import generate_with_own_cache
from learning.generation.engines.token_sampling import find_kept
from learning.generation.engines.torch import Engine
from learning.samples.engine_protocol import Request, Sampling
from learning.samples.kept_tokens import decode_kept, encode_kept
from schemas.errors import StepError
from schemas.kept_tokens import KeptTokens

PROMPTS = [[5, 6, 7], [9], [4, 8, 15, 16, 23, 42, 3, 2, 30]]
REQUESTS = [Request(ids, 3, seed) for seed, ids in enumerate(PROMPTS)]
CUTS = {"top_k": {"top_k": 5}, "top_p": {"top_p": 0.6}, "both": {"top_k": 9, "top_p": 0.8}}


def keep_by_hand(logits, top_k=None, top_p=None):
    """The kept ids of one distribution, by a loop over its tokens from the likeliest."""
    order = sorted(range(len(logits)), key=lambda v: (-float(logits[v]), v))[: top_k or len(logits)]
    p = torch.softmax(logits[order].double(), 0).tolist()
    kept, reached = [], 0.0
    for v, share in zip(order, p, strict=True):
        if kept and top_p is not None and reached >= top_p:
            break
        kept.append(v)
        reached += share
    return set(kept)


@pytest.mark.parametrize("cut", CUTS)
def test_the_kept_tokens_are_those_of_the_definition(cut):
    logits = 2 * torch.randn(40, 23, generator=torch.Generator().manual_seed(1))
    kept = find_kept(logits, KeptTokens(**CUTS[cut]))
    for row, mask in zip(logits, kept, strict=True):
        assert set(mask.nonzero()[:, 0].tolist()) == keep_by_hand(row, **CUTS[cut])


def test_top_p_keeps_the_token_that_reaches_it_and_top_k_the_lower_ids_of_equals():
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.4, 0.4]]).log()
    for top_p, want in ((0.4, 1), (0.5 + 1e-6, 2), (0.79, 2), (0.81, 3)):
        assert int(find_kept(logits, KeptTokens(top_p=top_p))[0].sum()) == want
    assert find_kept(logits, KeptTokens(top_k=1)).tolist() == [[True, False, False], [False, True, False]]
    # top_p cuts what top_k leaves: of 0.5 and 0.3 the first is 5/8.
    assert find_kept(logits, KeptTokens(top_k=2, top_p=0.6))[0].tolist() == [True, False, False]


@pytest.mark.parametrize("size", [1, 7, 8, 130, 4096])
def test_records_are_read_back_and_are_the_shorter_of_ids_and_bits(size):
    rng = np.random.default_rng(size)
    kept_BV = np.stack([rng.random(size) < share for share in (0.01, 0.3, 0.9, 2.0)])
    kept_BV[:, 0] = True
    records = encode_kept(kept_BV)
    assert (decode_kept(records, size) == kept_BV).all()
    assert records[-1] == ""
    for record, row in zip(records, kept_BV, strict=True):
        assert len(record) <= 1 + 4 * -(-min(4 * int(row.sum()), -(-size // 8)) // 3)
    wider = decode_kept(records, size + 9)
    assert not wider[:-1][np.array(records[:-1]) != ""][:, size:].any()


def is_kept(generation, size):
    """Whether every sampled token is among its own kept ones."""
    kept = decode_kept(generation.kept, size)
    return all(kept[place, token] for place, token in enumerate(generation.token_ids))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trap_08_log_probabilities_among_kept_tokens_are_those_that_the_update_computes(tiny_policy, cut, temperature):
    sampling = Sampling(temperature, 16, entropy=True, kept_tokens=KeptTokens(**CUTS[cut]))
    made = Engine(tiny_policy, max_slots=7).generate(REQUESTS, sampling)
    batch = single_turn(PROMPTS, made)
    size = tiny_policy.model.config.vocab_size
    assert all(is_kept(g, size) for of in made for g in of)
    names, given = ("lp", "entropy", "collision"), {"max_tokens": 64, "temperature": temperature}
    got = statistics_of(batch, tiny_policy.model, names, **given)
    assert float((got["lp"] - batch.sampled("lp_behav")).abs().max()) < 1e-5
    # The same from a plain forward pass over each completion.
    place = 0
    for prompt, of in zip(PROMPTS, made, strict=True):
        for g in of:
            ids = prompt + g.token_ids
            with torch.no_grad():
                logits = tiny_policy.model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].double() / temperature
            kept = torch.from_numpy(decode_kept(g.kept, size))
            p = torch.where(kept, logits.exp(), 0.0)
            p = p / p.sum(-1, keepdim=True)
            assert g.logprobs == pytest.approx(
                p.gather(1, torch.tensor(g.token_ids)[:, None])[:, 0].log().tolist(), abs=1e-5
            )
            entropy = -torch.special.xlogy(p, p).sum(-1)
            assert g.entropies == pytest.approx(entropy.tolist(), abs=1e-5)
            here = slice(place, place + len(g.token_ids))
            torch.testing.assert_close(got["entropy"][here], entropy, atol=1e-5, rtol=0)
            torch.testing.assert_close(got["collision"][here], p.square().sum(-1), atol=1e-5, rtol=0)
            place = here.stop
    # Without the records the update would see another distribution.
    plain = statistics_of(replace(batch, kept=()), tiny_policy.model, ("lp",), **given)["lp"]
    assert float((plain - batch.sampled("lp_behav")).mean()) < -0.1


def test_a_part_of_a_batch_has_its_own_records(tiny_policy):
    sampling = Sampling(1.0, 12, kept_tokens=KeptTokens(top_k=4))
    batch = single_turn(PROMPTS, Engine(tiny_policy).generate(REQUESTS, sampling))
    whole = compute_token_statistics(tiny_policy.model, batch, ("lp",), temperature=1.0)["lp"]
    parts = [
        compute_token_statistics(tiny_policy.model, part, ("lp",), temperature=1.0)["lp"]
        for part in split_micro_batches(batch, 20)
    ]
    assert len(parts) > 2
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", [1, 5])
def test_records_survive_a_break_in_a_completion(tiny_policy, window):
    sampling = Sampling(1.0, 12, kept_tokens=KeptTokens(top_p=0.7))
    engine = Engine(tiny_policy, max_slots=4)
    (whole,) = engine.generate([REQUESTS[0]], sampling)
    for number, want in enumerate(whole):
        tokens, kept = [], []
        while len(tokens) < len(want.token_ids):
            asked = replace(REQUESTS[0], n=1, first=number, begun=tuple(tokens))
            ((part,),) = engine.generate([asked], replace(sampling, window=window))
            tokens, kept = tokens + part.token_ids, kept + part.kept
        assert (tokens, kept) == (want.token_ids, want.kept)


def test_flights_and_own_caches_keep_the_same_tokens(tiny_policy):
    sampling = Sampling(1.0, 12, kept_tokens=KeptTokens(top_k=6, top_p=0.9))
    engine = Engine(tiny_policy, max_slots=4)
    want = [[(g.token_ids, g.kept) for g in of] for of in engine.generate(REQUESTS, sampling)]
    flight = engine.flight(sampling)
    for ticket, request in enumerate(REQUESTS):
        flight.add(ticket, request)
    flown: dict = {}
    while flight.running:
        flown |= {(ticket, g.sample): (g.token_ids, g.kept) for ticket, g in flight.step()}
    assert [[flown[r, i] for i in range(3)] for r in range(3)] == want
    own = generate_with_own_cache(tiny_policy.model, REQUESTS, sampling, tiny_policy.stop_ids, 8)
    assert [[(g.token_ids, g.kept) for g in of] for of in own] == want


def test_a_server_that_reports_no_kept_tokens_is_refused():
    with pytest.raises(StepError, match="does not support `kept_tokens`"):
        check(REQUESTS, Sampling(1.0, 4, kept_tokens=KeptTokens(top_k=3)))
