"""Generation step by step: what is added, taken out or met by new weights is, token by token, what it should be."""

import copy
from dataclasses import replace
from itertools import chain

import pytest
import torch

from learning.generation.engines.torch import Engine
from learning.models.policy import Policy
from learning.samples.engine_protocol import Flight, FlyingEngine, Request, Sampling
from schemas.errors import StepError

REQUESTS = [Request(ids, 3, seed) for seed, ids in enumerate([[5, 6, 7], [9], [4, 8, 15, 16, 23, 42, 3, 2, 30]])]
SAMPLING = Sampling(1.3, 20, entropy=True)


def other(policy, seed=1):
    """The policy with weights of its own."""
    model = copy.deepcopy(policy.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return Policy(model, policy.tokenizer, policy.max_length)


def land(flight, steps=10_000):
    """Everything that ends within some steps, by ticket and sample."""
    completions = {}
    for _ in range(steps):
        if not flight.running:
            break
        for ticket, generation in flight.step():
            assert (ticket, generation.sample) not in completions
            completions[ticket, generation.sample] = generation
    return completions


def full_lp(policy, prompt, ids, temperature=1.3):
    """Log-probabilities of the tokens after the prompt, from one forward pass."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def endless(policy):
    """A processor under which nothing ends by itself."""

    def process(logits_BV, place_B):
        logits_BV = logits_BV.clone()
        logits_BV[:, policy.tokenizer.eos_token_id] = -torch.inf
        return logits_BV

    return process


def test_the_engine_says_that_it_can_fly(tiny_policy):
    engine = Engine(tiny_policy)
    assert isinstance(engine, FlyingEngine)
    assert isinstance(engine.flight(SAMPLING), Flight)


@pytest.mark.parametrize("slots", [2, 4, 64])
def test_a_flight_makes_what_one_call_makes(tiny_policy, slots):
    engine = Engine(tiny_policy, max_slots=slots)
    whole = engine.generate(REQUESTS, SAMPLING)
    flight = engine.flight(SAMPLING)
    for ticket, request in enumerate(REQUESTS):
        flight.add(ticket, request)
    assert flight.running == 9
    completions = land(flight)
    assert flight.running == 0
    for (ticket, sample), got in completions.items():
        want = whole[ticket][sample]
        assert (got.token_ids, got.finish) == (want.token_ids, want.finish)
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-5)
        assert got.entropies == pytest.approx(want.entropies, abs=1e-5)
        assert got.versions == [(0, len(got.token_ids))]
    assert len(completions) == 9


def test_requests_come_and_go_while_others_run(tiny_policy):
    engine = Engine(tiny_policy, max_slots=5)
    whole = engine.generate(REQUESTS, SAMPLING)
    flight, completions = engine.flight(SAMPLING), {}
    flight.add(0, REQUESTS[0])
    completions |= land(flight, 3)
    flight.add(1, REQUESTS[1])
    completions |= land(flight, 2)
    taken = flight.suspend([0])
    assert [g.sample for _, g in taken] == sorted(g.sample for _, g in taken)
    # A longer prompt than any before: the slots grow under what runs.
    flight.add(2, REQUESTS[2])
    completions |= land(flight, 4)
    for _, cut in taken:
        assert cut.finish == "suspended"
        again = replace(REQUESTS[0], n=1, first=cut.sample, begun=tuple(cut.token_ids))
        flight.add(100 + cut.sample, again)
    completions |= land(flight)
    for _, cut in taken:
        rest = completions.pop((100 + cut.sample, cut.sample))
        want = whole[0][cut.sample]
        assert (cut.token_ids + rest.token_ids, rest.finish) == (want.token_ids, want.finish)
        assert cut.logprobs + rest.logprobs == pytest.approx(want.logprobs, abs=1e-5)
    for (ticket, sample), got in completions.items():
        assert got.token_ids == whole[ticket][sample].token_ids
    assert len(completions) + len(taken) == 9


def test_what_waits_is_suspended_too_and_a_flight_forgets_what_has_left(tiny_policy):
    engine = Engine(tiny_policy, max_slots=2)
    flight = engine.flight(replace(SAMPLING, processor=endless(tiny_policy)))
    for ticket, request in enumerate(REQUESTS):
        flight.add(ticket, request)
    assert flight.step() == []
    taken = flight.suspend()
    assert [(t, g.sample) for t, g in taken] == [(t, i) for t in range(3) for i in range(3)]
    assert [len(g.token_ids) for _, g in taken] == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert flight.running == 0
    assert not flight.requests
    assert not flight.known
    assert not flight.prefilled
    assert flight.step() == []


@pytest.mark.parametrize("changes", [(3,), (1, 2, 9)])
def test_trap_21_running_samples_continue_under_new_weights_from_the_exact_token(tiny_policy, changes):
    policies = [other(tiny_policy, seed) for seed in range(len(changes) + 1)]
    mine = other(tiny_policy, 0)
    engine = Engine(mine, max_slots=4)
    flight, completions = engine.flight(SAMPLING), {}
    for ticket, request in enumerate(REQUESTS):
        flight.add(ticket, request)
    done = 0
    for version, at in enumerate(changes, 1):
        completions |= land(flight, at - done)
        done = at
        mine.model.load_state_dict(policies[version].model.state_dict())
        engine.sync(version)
    completions |= land(flight)
    assert len(completions) == 9
    several = 0
    for (ticket, _), got in completions.items():
        request = REQUESTS[ticket]
        assert sum(n for _, n in got.versions) == len(got.token_ids)
        assert [v for v, _ in got.versions] == sorted({v for v, _ in got.versions})
        several += len(got.versions) > 1
        # Every token's log-probability is that of the weights which its span names, after all tokens before it.
        of = [full_lp(policy, request.prompt_ids, got.token_ids) for policy in policies]
        spans = list(chain.from_iterable([v] * n for v, n in got.versions))
        want = [of[version][place] for place, version in enumerate(spans)]
        assert got.logprobs == pytest.approx(want, abs=2e-5)
    assert several >= 3


def test_trap_21_weights_of_a_version_that_was_there_before_are_new_weights_too(tiny_policy):
    """A watch steps back: the weights are others, and the version is that of the update which was undone."""
    mine = other(tiny_policy, 0)
    back = other(tiny_policy, 3)
    engine = Engine(mine)
    flight = engine.flight(replace(SAMPLING, processor=endless(tiny_policy)))
    flight.add(0, REQUESTS[0])
    engine.sync(1)
    land(flight, 5)
    mine.model.load_state_dict(back.model.state_dict())
    engine.sync(1)
    for (_, _), got in land(flight).items():
        assert got.versions == [(1, 5), (1, 15)]
        request = REQUESTS[0]
        ids = [*request.prompt_ids, *got.token_ids]
        with torch.no_grad():
            logits = back.model(torch.tensor([ids])).logits[0, len(request.prompt_ids) - 1 : -1].float() / 1.3
        logits[:, tiny_policy.tokenizer.eos_token_id] = -torch.inf
        want = logits.log_softmax(-1).gather(1, torch.tensor(got.token_ids)[:, None])[:, 0]
        assert got.logprobs[5:] == pytest.approx(want[5:].tolist(), abs=2e-5)


def test_new_weights_take_the_draws_that_the_old_ones_would_have_taken(tiny_policy):
    """The same weights under a new version: nothing changes but the versions."""
    engine = Engine(tiny_policy, max_slots=4)
    whole = engine.generate(REQUESTS, SAMPLING)
    flight, completions = engine.flight(SAMPLING), {}
    for ticket, request in enumerate(REQUESTS):
        flight.add(ticket, request)
    for version in range(1, 400):
        completions |= land(flight, 1)
        engine.sync(version)
    assert len(completions) == 9
    for (ticket, sample), got in completions.items():
        assert got.token_ids == whole[ticket][sample].token_ids
        first = got.versions[0][0]
        assert got.versions == [(first + i, 1) for i in range(len(got.token_ids))]


def test_a_flight_refuses_what_a_call_refuses(tiny_policy):
    flight = Engine(tiny_policy).flight(SAMPLING)
    with pytest.raises(StepError, match="nothing is left to sample"):
        flight.add(0, Request([5], 1, 0, begun=tuple(range(3, 23))))
    with pytest.raises(StepError, match="a prompt of 0 tokens"):
        flight.add(0, Request([], 1, 0))
    assert flight.running == 0


def test_requests_of_several_temperatures_and_stops_fly_together(tiny_policy):
    engine = Engine(tiny_policy, max_slots=3)
    sampling = replace(SAMPLING, stop=((11, 12), (7,)), entropy=False)
    asked = [replace(REQUESTS[0], temperature=t) for t in (0.0, None, 2.0)]
    whole = engine.generate(asked, sampling)
    flight = engine.flight(sampling)
    for ticket, request in enumerate(asked):
        flight.add(ticket, request)
    completions = land(flight)
    assert {key: g.token_ids for key, g in completions.items()} == {
        (ticket, i): g.token_ids for ticket, made in enumerate(whole) for i, g in enumerate(made)
    }
