"""Weights for one worker after the other: who decodes meanwhile, by which weights, and what becomes of a death."""

import copy
import threading

import pytest
import torch

from learning.collection.rollouts.streaming import streamed
from learning.generation.engines.torch import Engine
from learning.generation.replicas.engine_loading import make_engine
from learning.generation.replicas.replicas import Replicas
from learning.generation.services.rollout_service import RolloutService
from learning.generation.weights.protocol import Receipt
from learning.models.policy import Policy
from learning.parallel.actors import Threads
from learning.samples.engine_protocol import Request, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.streaming.stream import Stream
from schemas.errors import StepError
from schemas.use import EngineUse
from tests.waiting import wait_for

TIMEOUT = 30
TOKENS = 12


class Workers:
    """Two services in threads, each with an engine of its own; worker 0 takes weights when it is let."""

    def __init__(self, policy):
        self.policy, self.services, self.loads = policy, [], []
        self.loading, self.let = threading.Event(), threading.Event()
        self.halted, self.lock = threading.Event(), threading.Lock()
        self.halted.set()

    def make(self):
        """A factory for `Threads`."""
        mine = own(self.policy)
        engine = Engine(mine)
        with self.lock:
            service = RolloutService(engine, lambda receipt: self.take(service, engine, receipt), mine)
            service.counts["number"] = float(len(self.services))
            self.services.append(service)
        return service.start()

    def take(self, service, engine, receipt):
        """What a service does to load weights: worker 0 waits."""
        number = self.services.index(service)
        if number == 0:
            self.loading.set()
            assert self.let.wait(TIMEOUT)
        engine.sync(receipt.version)
        self.loads.append((number, receipt.version))

    def hold(self, logits_BV, place_B):
        """A processor that lets decoding go on only while it is not halted, and no completion end before its time."""
        assert self.halted.wait(TIMEOUT)
        end = torch.tensor([self.policy.tokenizer.eos_token_id])
        return logits_BV.index_fill(1, end, -torch.inf)


class Trainer:
    """A trainer's end that says which version it is, and notes what was published."""

    def __init__(self):
        self.published = []

    def publish(self, version):
        self.published.append(version)
        return Receipt(version, "nowhere")

    def wait(self):
        pass


@pytest.fixture
def workers(tiny_policy):
    """Two workers, and the client over them."""
    made = Workers(tiny_policy)
    actors = Threads({"rollout": 2})
    trainer = Trainer()
    replicas = Replicas(actors, actors.start("rollout", made.make), lambda: trainer)
    # Threads begin in any order: the first of the client's workers is number 0.
    order = [one["number"] for one in replicas.stats()]
    made.services.sort(key=lambda one: order.index(one.counts["number"]))
    yield made, replicas, trainer
    made.let.set()
    made.halted.set()
    for service in made.services:
        service.close()
    replicas.close()


def sampling(made):
    return Sampling(1.0, TOKENS, processor=made.hold)


def collected(replicas, number):
    made = []
    wait_for(lambda: made.extend(replicas.collect(0.05)) or len(made) >= number, TIMEOUT)
    return dict(made)


def settle(replicas):
    while not replicas.settled:
        replicas.collect(0.05)


def go_on_once_told(made, *numbers):
    """Let decoding go on as soon as the weights are the next thing that these workers do."""

    def told(number):
        service, began = made.services[number], number == 0 and made.loading.is_set()
        return began or (service.running and service.inbox) or number in dict(made.loads)

    wait_for(lambda: all(map(told, numbers)), TIMEOUT)
    made.halted.set()


def test_a_worker_completes_at_its_version_while_another_loads_the_next(workers):
    made, replicas, _ = workers
    made.halted.clear()
    replicas.submit([(0, Request([5, 6], 1, 1)), (1, Request([7, 8], 1, 2))], sampling(made))
    replicas.sync(1, each=True)  # returns although nobody has loaded anything
    go_on_once_told(made, 0)
    assert made.loading.wait(TIMEOUT)
    # Worker 0 stands still until it is let; worker 1 ends what it had, and what comes anew, by the weights it has.
    assert collected(replicas, 1)[1].versions == [(0, TOKENS)]
    replicas.submit([(2, Request([9], 1, 3))], sampling(made))
    assert collected(replicas, 1)[2].versions == [(0, TOKENS)]
    assert made.loads == []
    assert not replicas.settled
    made.let.set()
    late = collected(replicas, 1)[0].versions
    assert [version for version, _ in late] in ([0, 1], [1])
    assert sum(tokens for _, tokens in late) == TOKENS
    settle(replicas)
    assert made.loads == [(0, 1), (1, 1)]
    replicas.submit([(3, Request([5], 1, 4)), (4, Request([6], 1, 5))], sampling(made))
    assert {tuple(one.versions) for one in collected(replicas, 2).values()} == {((1, TOKENS),)}


def test_when_all_replicas_update_together_no_sample_ends_at_its_first_version(workers):
    made, replicas, _ = workers
    made.halted.clear()
    replicas.submit([(0, Request([5, 6], 1, 1)), (1, Request([7, 8], 1, 2))], sampling(made))
    trainer = threading.Thread(target=replicas.sync, args=(1,))
    trainer.start()
    go_on_once_told(made, 0, 1)
    assert made.loading.wait(TIMEOUT)
    # Worker 1 has its weights and ends under them; the trainer waits for worker 0 and hears of nothing.
    with made.services[1].changed:
        assert made.services[1].changed.wait_for(lambda: made.services[1].outbox, TIMEOUT)
        versions = [generation.versions[-1][0] for _, generation in made.services[1].outbox]
    assert versions == [1]
    assert made.loads == [(1, 1)]
    assert trainer.is_alive()
    made.let.set()
    trainer.join(TIMEOUT)
    assert all(one.versions[-1][0] == 1 for one in collected(replicas, 2).values())


def test_no_worker_is_more_than_one_version_behind(workers):
    made, replicas, trainer = workers
    replicas.sync(1, each=True)
    assert made.loading.wait(TIMEOUT)
    second = threading.Thread(target=replicas.sync, args=(2,), kwargs={"each": True})
    second.start()
    # Version 2 is not even published while worker 0 has not taken version 1, and worker 1 after it.
    assert trainer.published == [1]
    assert second.is_alive()
    made.let.set()
    second.join(TIMEOUT)
    assert made.loads[:2] == [(0, 1), (1, 1)]
    assert trainer.published == [1, 2]
    # Whole batches are of one version.
    completions = replicas.generate([Request([5], 3, 1), Request([6], 3, 2)], sampling(made))
    assert {tuple(one.versions) for of in completions for one in of} == {((2, TOKENS),)}
    assert made.loads == [(0, 1), (1, 1), (0, 2), (1, 2)]


def test_a_replica_that_dies_while_loading_is_replaced_with_current_weights(workers):
    made, replicas, _ = workers
    replicas.sync(1, each=True)
    assert made.loading.wait(TIMEOUT)
    replicas.replicas[0].remote.stop()
    settle(replicas)
    replicas.submit([(n, Request([n + 5], 1, n)) for n in range(6)], sampling(made))
    assert {tuple(one.versions) for one in collected(replicas, 6).values()} == {((1, TOKENS),)}
    assert set(made.loads) == {(1, 1), (2, 1)}


def test_numbers_of_one_that_loads_are_not_waited_for(workers):
    made, replicas, _ = workers
    before = replicas.stats()
    replicas.sync(1, each=True)
    assert made.loading.wait(TIMEOUT)
    stats = replicas.stats()
    assert stats[0] == before[0]
    made.let.set()
    settle(replicas)
    assert [one["version"] for one in replicas.stats()] == [1, 1]


def test_what_is_taken_out_while_one_loads_is_all_that_was_under_way(workers):
    made, replicas, _ = workers
    made.halted.clear()
    replicas.submit([(n, Request([n + 5], 1, n)) for n in range(6)], sampling(made))
    replicas.sync(1, each=True)
    go_on_once_told(made, 0)
    assert made.loading.wait(TIMEOUT)
    taken_out = []
    taking = threading.Thread(target=lambda: taken_out.extend(replicas.suspend()))
    taking.start()
    made.let.set()
    taking.join(TIMEOUT)
    assert sorted(ticket for ticket, _ in taken_out) == list(range(6))
    # They go on where they were, under what is there by then.
    settle(replicas)
    begun = {ticket: one.token_ids for ticket, one in taken_out if one.finish == "suspended"}
    again = [(n, Request([n + 5], 1, n, begun=tuple(ids))) for n, ids in begun.items()]
    replicas.submit(again, sampling(made))
    for ticket, one in collected(replicas, len(again)).items():
        assert one.versions == [(1, TOKENS - len(begun[ticket]))]


def test_what_does_not_arrive_ends_it(workers):
    made, replicas, _ = workers
    made.take = lambda *_: (_ for _ in ()).throw(StepError("version 1 is not what was published"))
    replicas.sync(1, each=True)
    with pytest.raises(StepError, match="not what was published"):
        settle(replicas)


ROWS = [
    {"id": text, "prompt": [{"role": "user", "content": text}], "answer": text, "family": "f", "metadata": "{}"}
    for text in ("ab", "c", "de?", "f!")
]
STEPS = 5


def plan_of(step):
    return [SampleRequest(row, 2) for row in ROWS]


def rated(samples, step, place):
    for sample in samples:
        sample.scores["length"] = sample.reward = float(len(sample.completion_ids))


def moved(policy, step):
    """Other weights, as an update leaves them."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return own(policy)


def own(policy):
    return Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.max_length)


def told_by(policy, sample):
    with torch.no_grad():
        ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
        logits = policy.model(ids).logits[0, len(sample.prompt_ids) - 1 : -1].float() / 2.0
    return logits.log_softmax(-1).gather(1, torch.tensor(sample.completion_ids)[:, None])[:, 0].tolist()


def test_tokens_are_of_the_version_they_say_and_never_older_than_the_bound(tiny_policy, tiny_policy_folder, tmp_path):
    """Two real workers, weights through files: a log-probability is that of the weights whose version it carries."""
    actors = Threads({"rollout": 2})
    how = {"folder": tiny_policy_folder, "scratch": tmp_path / "weights"}
    stream = Stream(make_engine(EngineUse(use="torch"), tiny_policy, actors, **how))
    policies, seen = [own(tiny_policy)], []
    try:
        for step in range(STEPS):
            sampler = Sampler(stream, tiny_policy, Sampling(2.0, TOKENS), 5, step)
            samples = streamed([], sampler, stream, plan_of, rated, step, 0, STEPS, max_staleness=2, sync="each")
            ages = [step - version for sample in samples for version in sample.versions]
            assert min(ages) >= 0
            assert max(ages) <= 2
            # One iteration of the two is the workers': no plan but the next has been asked.
            assert stream.requested == min(step + 2, STEPS)
            seen += samples
            policies.append(moved(tiny_policy, step))
            stream.sync(step + 1)
            assert stream.metrics().keys() >= {"trainer_wait_seconds", "generator_idle_share"}
    finally:
        stream.close()
    assert sorted(sample.row["id"] for sample in seen) == sorted([row["id"] for row in ROWS] * 2 * STEPS)
    for sample in seen:
        assert sample.versions == sorted(sample.versions)
        of = [told_by(policy, sample) for policy in policies]
        want = [of[version][place] for place, version in enumerate(sample.versions)]
        assert sample.logprobs == pytest.approx(want, abs=2e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_staleness": 0}, "ahead 0 is more than max_staleness 0 minus 1"),
        ({"max_staleness": 2, "ahead": 2}, "ahead 2 is more than max_staleness 2 minus 1"),
        ({"max_staleness": 2, "interrupt": False}, "set `interrupt: true`"),
    ],
)
def test_what_leaves_no_room_for_the_lag_is_refused(options, message):
    with pytest.raises(StepError, match=message):
        streamed([], None, None, plan_of, rated, 0, 0, STEPS, sync="each", **options)
