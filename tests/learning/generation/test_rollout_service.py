"""A service in a thread: what comes back is what one call gives, whenever weights change and whoever asks."""

import threading
from dataclasses import replace

import pytest
import torch

from learning.generation.engines.torch import Engine
from learning.generation.services.rollout_service import RolloutService
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError

REQUESTS = [Request(ids, 3, seed) for seed, ids in enumerate([[5, 6, 7], [9], [4, 8, 15, 16, 23, 42]])]
SAMPLING = Sampling(1.3, 16)
TIMEOUT = 60.0


def everything(service, number):
    """Completions until there are so many."""
    made = []
    while len(made) < number:
        more = service.collect(TIMEOUT)
        assert more
        made += more
    return {(ticket, g.sample): g for ticket, g in made}


@pytest.fixture
def serve(tiny_policy):
    """A service over the tiny policy; the weights of a receipt are a number that multiplies them."""
    made = []

    def make(threaded=True, **options):
        engine = Engine(tiny_policy, **options)

        def take(receipt):
            version, factor = receipt
            with torch.no_grad():
                for parameter in tiny_policy.model.parameters():
                    parameter.mul_(factor)
            engine.sync(version)

        made.append(RolloutService(engine, take, tiny_policy))
        return made[-1].start() if threaded else made[-1]

    yield make
    for service in made:
        service.close()


@pytest.mark.parametrize("threaded", [True, False])
def test_submitted_requests_return_the_same_as_one_call(tiny_policy, serve, threaded):
    want = Engine(tiny_policy).generate(REQUESTS, SAMPLING)
    service = serve(threaded)
    service.submit([(7, REQUESTS[0])], SAMPLING)
    service.submit([(8, REQUESTS[1]), (9, REQUESTS[2])], SAMPLING)
    while not threaded and service.turn():
        pass
    completions = everything(service, 9)
    assert {(t, i): g.token_ids for t, i, g in ((t, i, completions[t, i]) for t, i in completions)} == {
        (7 + r, i): g.token_ids for r, of in enumerate(want) for i, g in enumerate(of)
    }
    assert service.collect() == []
    stats = service.stats()
    assert stats["ended"] == 9
    assert stats["tokens"] == sum(len(g.token_ids) for g in completions.values())
    assert stats["open"] == 0


def test_weights_are_put_in_place_between_two_steps(serve):
    service = serve(threaded=False)
    service.submit(list(enumerate(REQUESTS)), replace(SAMPLING, max_new_tokens=6))
    service.turn()
    service.turn()
    service.load((5, 1.1))
    while service.turn():
        pass
    completions = everything(service, 9)
    long = [g for g in completions.values() if len(g.token_ids) > 2]
    assert long
    assert all(g.versions == [(0, 2), (5, len(g.token_ids) - 2)] for g in long)
    assert service.stats()["loads"] == 1


def test_sampling_requests_run_concurrently(tiny_policy, serve):
    cold = replace(SAMPLING, temperature=0.5)
    service = serve()
    service.submit([(0, REQUESTS[0])], SAMPLING)
    service.submit([(1, REQUESTS[0])], cold)
    completions = everything(service, 6)
    for ticket, sampling in enumerate((SAMPLING, cold)):
        want = Engine(tiny_policy).generate(REQUESTS[:1], sampling)[0]
        assert [completions[ticket, i].token_ids for i in range(3)] == [g.token_ids for g in want]


def test_suspended_samples_resume_where_they_stopped(tiny_policy, serve):
    want = Engine(tiny_policy).generate(REQUESTS, SAMPLING)
    service = serve(threaded=False, max_slots=2)
    service.submit(list(enumerate(REQUESTS)), SAMPLING)
    for _ in range(5):
        service.turn()
    made = {(t, g.sample): g.token_ids for t, g in service.collect()}
    out = service.suspend()
    assert len(made) + len(out) == 9
    for ticket, cut in out:
        made[ticket, cut.sample] = cut.token_ids
        again = replace(REQUESTS[ticket], n=1, first=cut.sample, begun=tuple(cut.token_ids))
        service.submit([(ticket, again)], SAMPLING)
    while service.turn():
        pass
    for ticket, rest in service.collect():
        made[ticket, rest.sample] = [*made[ticket, rest.sample], *rest.token_ids]
    assert made == {(t, i): g.token_ids for t, of in enumerate(want) for i, g in enumerate(of)}


def test_likelihoods_are_computed_while_others_run(tiny_policy, serve):
    service = serve()
    service.submit(list(enumerate(REQUESTS)), SAMPLING)
    (logprobs,) = service.likelihoods([([5, 6], [7, 8, 9])], 0.7)
    everything(service, 9)
    with torch.no_grad():
        logp = (tiny_policy.model(torch.tensor([[5, 6, 7, 8, 9]])).logits[0, 1:-1].float() / 0.7).log_softmax(-1)
    assert logprobs == pytest.approx([float(logp[i, t]) for i, t in enumerate([7, 8, 9])], abs=1e-5)


def test_a_failure_is_raised_in_the_next_call_and_in_waiting_ones(serve):
    service = serve()
    service.submit([(0, Request([], 1, 0))], SAMPLING)
    with pytest.raises(StepError, match="a prompt of 0 tokens"):
        service.collect(TIMEOUT)
    with pytest.raises(StepError, match="a prompt of 0 tokens"):
        service.load((1, 1.0))

    def burst(logits_BV, place_B):
        raise ZeroDivisionError("no such number")

    other = serve()
    heard = []

    def wait():
        try:
            other.collect(TIMEOUT)
        except StepError as error:
            heard.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    other.submit([(0, REQUESTS[0])], replace(SAMPLING, processor=burst))
    waiting.join(TIMEOUT)
    assert heard == ["rollout service: ZeroDivisionError: no such number"]


def test_a_closed_service_says_so(serve):
    service = serve()
    service.close()
    with pytest.raises(StepError, match="it was closed"):
        service.submit([], SAMPLING)
    assert not service.thread.is_alive()
