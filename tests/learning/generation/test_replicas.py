"""Many engines as one: where requests go, how many at a time, and what becomes of them when an engine dies."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch

from learning.generation.engines.torch import Engine
from learning.generation.replicas.engine_loading import make_engine
from learning.generation.replicas.replicas import TRIES, Replicas
from learning.generation.weights.protocol import Receipt
from learning.models.forwards import apply_compute_options
from learning.parallel.actors import Threads
from learning.samples.engine_protocol import Generation, Request, Sampling
from schemas.errors import StepError
from schemas.training import Training
from schemas.use import EngineUse

HEAT = Sampling(1.3, 16)


class Fake:
    """A service that gives `at_once` completions per call, each of them [seed, stream, version]."""

    def __init__(self, log, at_once=1, dies_after=None):
        self.queue, self.at_once, self.dies_after, self.given, self.most = [], at_once, dies_after, 0, 0
        self.log, self.version, self.number = log, 0, len(log.births)
        log.births.append(self)

    def submit(self, requests, sampling):
        if any(not request.prompt_ids for _, request in requests):
            raise StepError("an empty prompt")
        self.queue += [(t, r, r.first + i, sampling) for t, r in requests for i in range(r.n)]
        self.most = max(self.most, len(self.queue))
        self.log.submitted += [(self.number, tuple(r.prompt_ids), r.first, r.n) for _, r in requests]

    def collect(self, wait_s=0.0):
        if self.log.dies(self):
            raise SystemExit
        now, self.queue = self.queue[: self.at_once], self.queue[self.at_once :]
        self.given += len(now)
        return [(t, self.said(r, k, s)) for t, r, k, s in now]

    def said(self, request, k, sampling):
        ids = [request.seed, k, self.version][: sampling.max_new_tokens - len(request.begun)]
        return Generation(ids, [0.0] * len(ids), "stop" if len(ids) == 3 else "length", sample=k)

    def suspend(self):
        left, self.queue = self.queue, []
        return [(t, Generation([], [], "suspended", sample=k)) for t, _, k, _ in left]

    def load(self, receipt):
        self.version = receipt.version

    def stats(self):
        return {"most": self.most, "given": self.given, "version": self.version}


@dataclass
class Log:
    """What the fakes of a test saw; `dies` says whether one of them dies now."""

    dies: Callable = lambda one: False
    births: list = field(default_factory=list)
    submitted: list = field(default_factory=list)


class Publisher:
    """A trainer's end that sends nothing."""

    def publish(self, version):
        return Receipt(version, "nowhere")

    def wait(self):
        pass


def replicas_of(size, log, *, in_flight=4, at_once=1):
    actors = Threads({"rollout": size})
    remotes = actors.start("rollout", Fake, log, at_once)
    return Replicas(actors, remotes, Publisher, in_flight=in_flight)


def plain(completions):
    return [[(g.token_ids, g.finish) for g in of] for of in completions]


def test_completions_are_returned_in_request_order():
    made = replicas_of(3, Log()).generate([Request([1], 5, 70), Request([2], 0, 71), Request([3], 2, 72, 4)], HEAT)
    assert plain(made) == [
        [([70, k, 0], "stop") for k in range(5)],
        [],
        [([72, k, 0], "stop") for k in (4, 5)],
    ]


def test_no_replica_is_given_more_than_it_may_have_at_a_time():
    log = Log()
    replicas = replicas_of(2, log, in_flight=4)
    replicas.submit([(i, Request([i + 1], 2, i)) for i in range(20)], HEAT)
    assert sum(r.load for r in replicas.replicas) == 8
    assert len(replicas.waiting) == 16
    completions = []
    while made := replicas.collect(until_some=True):
        assert all(r.load <= 4 for r in replicas.replicas)
        completions += made
    assert sorted((ticket, g.sample) for ticket, g in completions) == [(i, k) for i in range(20) for k in range(2)]
    stats = replicas.stats()
    assert all(one["most"] <= 4 for one in stats)
    assert sum(one["given"] for one in stats) == 40
    assert min(one["given"] for one in stats) >= 4


def test_siblings_stay_together_and_a_large_group_is_shared():
    log = Log()
    replicas_of(2, log, in_flight=64).generate([Request([n], 4, n) for n in range(1, 7)], HEAT)
    assert sorted(log.submitted, key=lambda s: s[1]) == [((n - 1) % 2, (n,), 0, 4) for n in range(1, 7)]
    log = Log()
    replicas_of(2, log, in_flight=64).generate([Request([9], 7, 0)], HEAT)
    assert sorted(log.submitted) == [(0, (9,), 0, 4), (1, (9,), 4, 3)]
    # Others of the same prompt go to the replica that works on it, unless it owes more.
    log = Log()
    replicas = replicas_of(2, log, in_flight=64)
    replicas.submit([(i, Request([prompt], 1, i)) for i, prompt in enumerate((5, 6, 6, 5))], HEAT)
    assert [(number, prompt) for number, prompt, *_ in sorted(log_of(replicas, log))] == [
        (0, (5,)),
        (0, (5,)),
        (1, (6,)),
        (1, (6,)),
    ]


def log_of(replicas, log):
    while replicas.collect(until_some=True):
        pass
    return log.submitted


def test_requests_of_a_dead_replica_are_resampled_and_it_is_replaced():
    def dies(one):
        return one.number == 0 and one.given == 3

    log = Log(dies)
    replicas = replicas_of(2, log, in_flight=6)
    requests = [Request([n], 4, n) for n in range(1, 9)]
    replicas.sync(5)
    made = replicas.generate(requests, HEAT)
    assert plain(made) == [[([n, k, 5], "stop") for k in range(4)] for n in range(1, 9)]
    first, second, third = log.births
    assert first.given == 3
    assert third.version == 5
    assert first.given + second.given + third.given == 32
    # Nothing that had come back was asked for again.
    asked = Counter((prompt, k) for _, prompt, start, n in log.submitted for k in range(start, start + n))
    assert sum(asked.values()) - 32 <= 6


def test_one_that_dies_again_and_again_ends_it():
    replicas = replicas_of(2, Log(lambda one: one.number != 1))
    with pytest.raises(StepError, match=f"it died {TRIES} times in a row without a completion"):
        replicas.generate([Request([n], 2, n) for n in range(1, 60)], HEAT)


def test_a_wrong_request_is_reported_and_nothing_stays_under_way():
    replicas = replicas_of(2, Log(), in_flight=4)
    with pytest.raises(StepError, match=r"^an empty prompt$"):
        replicas.generate([Request([1], 3, 1), Request([], 1, 2), Request([3], 9, 1)], HEAT)
    assert not replicas.waiting
    assert not any(r.load for r in replicas.replicas)
    assert plain(replicas.generate([Request([4], 2, 8)], HEAT)) == [[([8, 0, 0], "stop"), ([8, 1, 0], "stop")]]


def test_new_weights_reach_every_replica():
    log = Log()
    replicas = replicas_of(3, log)
    replicas.sync(7)
    assert [one.version for one in log.births] == [7, 7, 7]
    assert replicas.version == 7
    made = replicas.generate([Request([1], 6, 1)], HEAT)
    assert {g.token_ids[2] for g in made[0]} == {7}
    still = Replicas(replicas.actors, [r.remote for r in replicas.replicas])
    with pytest.raises(StepError, match="cannot change"):
        still.sync(8)


def test_a_target_suspends_the_remaining_samples_and_a_window_the_running_ones():
    replicas = replicas_of(2, Log(), in_flight=4)
    made = replicas.generate([Request([1], 8, 1)], replace(HEAT, target=3))[0]
    ended = [g for g in made if g.finish == "stop"]
    assert len(made) == 8
    assert 3 <= len(ended) <= 6  # what the two end while they are being told
    assert all(g.token_ids == [] for g in made if g.finish == "suspended")
    begun = [Request([1], 2, 1), Request([1], 1, 1, 2, begun=(7,))]
    made = replicas.generate(begun, replace(HEAT, window=2))
    assert plain(made) == [[([1, 0], "suspended"), ([1, 1], "suspended")], [([1, 2], "suspended")]]
    made = replicas.generate(begun, replace(HEAT, window=2, max_new_tokens=2))
    assert plain(made) == [[([1, 0], "length"), ([1, 1], "length")], [([1], "length")]]


def test_suspend_gives_everything_back():
    replicas = replicas_of(2, Log(), in_flight=3)
    replicas.submit([(i, Request([i], 2, i)) for i in range(1, 6)], HEAT)
    made = replicas.collect(until_some=True) + replicas.suspend()
    assert sorted((ticket, g.sample) for ticket, g in made) == [(i, k) for i in range(1, 6) for k in range(2)]
    assert replicas.collect() == []


WHOLE = """
from learning.generation.engines.torch import Engine as Torch


class Engine:
    def __init__(self, policy):
        self.generate, self.sync = Torch(policy).generate, Torch(policy).sync
"""


@pytest.fixture(params=["torch", "all_in_one_call:Engine"])
def use(request, tmp_path, monkeypatch):
    """The torch engine as it is, and as one that cannot go step by step."""
    (tmp_path / "all_in_one_call.py").write_text(WHOLE)
    monkeypatch.syspath_prepend(tmp_path)
    return EngineUse.model_validate(request.param)


def test_two_replicas_of_the_torch_engine_give_the_tokens_of_one(tiny_policy_folder, tiny_policy, tmp_path, use):
    requests = [Request([5 + n, 6, 7], 3, n) for n in range(8)]
    alone = Engine(tiny_policy).generate(requests, HEAT)
    for size in (1, 2):
        actors = Threads({"rollout": size})
        replicas = make_engine(use, tiny_policy, actors, folder=tiny_policy_folder, scratch=tmp_path / f"w{size}")
        replicas.in_flight = 6
        made = replicas.generate(requests, HEAT)
        assert tokens(made) == tokens(alone)
        for of, by_itself in zip(made, alone, strict=True):
            for one, other in zip(of, by_itself, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        replicas.close()


def test_trainer_weights_reach_replicas_and_their_replacements(tiny_policy, tiny_policy_folder, tmp_path, use):
    asked = [Request([5, 6, 7], 4, 3), Request([9, 2], 4, 4)]
    actors = Threads({"rollout": 2})
    replicas = make_engine(use, tiny_policy, actors, folder=tiny_policy_folder, scratch=tmp_path / "weights")
    before = replicas.generate(asked, HEAT)
    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.mul_(0.7)
    replicas.sync(3)
    want = Engine(tiny_policy).generate(asked, HEAT)
    made = replicas.generate(asked, HEAT)
    assert tokens(made) == tokens(want) != tokens(before)
    replicas.replicas[0].remote.stop()
    assert tokens(replicas.generate(asked, HEAT)) == tokens(want)
    replicas.close()


def tokens(completions):
    return [[g.token_ids for g in of] for of in completions]


def test_a_replica_computes_as_the_trained_policy_does(tiny_policy, tiny_policy_folder):
    training, asked = Training(bf16=True), [Request([5, 6, 7], 2, 3)]
    plain = Engine(tiny_policy).generate(asked, HEAT)[0][0]
    apply_compute_options(tiny_policy.model, training)
    want = Engine(tiny_policy).generate(asked, HEAT)[0]
    actors = Threads({"rollout": 1})
    how = {"folder": tiny_policy_folder, "training": training}
    made = make_engine(EngineUse(use="torch"), tiny_policy, actors, **how).generate(asked, HEAT)[0]
    actors.close()
    assert [g.token_ids for g in made] == [g.token_ids for g in want]
    assert [g.logprobs for g in made] == [g.logprobs for g in want]
    assert abs(made[0].logprobs[0] - plain.logprobs[0]) > 1e-4
