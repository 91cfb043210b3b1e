"""Samples asked for ahead: how old they may be, that each is trained on once, and that what is slow is not left out."""

import copy
import json
import threading
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import pytest
import torch

from learning.collection.rollouts.streaming import one_step_off, streamed
from learning.generation.engines.torch import Engine
from learning.generation.services.local_rollouts import LocalRollouts
from learning.models.policy import Policy
from learning.samples.engine_protocol import Request, Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from learning.streaming.stream import Stream
from schemas.errors import StepError
from schemas.use import EngineUse

ROWS = [
    {"id": str(i), "prompt": [{"role": "user", "content": text}], "answer": text, "family": "f", "metadata": "{}"}
    for i, text in enumerate(["ab", "c", "de?", "f!", "gh", "i", "jkl", "m"])
]
GROUPS, N, STEPS, TOKENS = 4, 2, 7, 12


def plan_of(step):
    return [SampleRequest(ROWS[(step * GROUPS + place) % len(ROWS)], N) for place in range(GROUPS)]


@dataclass
class Trainer:
    """A loop that changes the weights a little in the place of an update."""

    policy: Policy
    stream: Stream
    rollout: object
    options: dict = field(default_factory=dict)
    score: object = None
    tokens: int = TOKENS
    seen: list = field(default_factory=list)

    def rate(self, samples, step, place):
        if self.score is not None:
            self.score(samples, step, place)
        for sample in samples:
            sample.scores["length"] = sample.reward = float(len(sample.completion_ids))

    def iterate(self, step, steps=STEPS):
        sampling = Sampling(2.0, self.tokens, processor=None)
        sampler = Sampler(self.stream, self.policy, sampling, 5, step)
        samples = self.rollout([], sampler, self.stream, plan_of, self.rate, step, 0, steps, **self.options)
        self.seen.append(samples)
        change(self.policy, step)
        self.stream.sync(step + 1)
        return samples


def change(policy, step):
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def own(policy):
    return Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.max_length)


@pytest.fixture
def train(tiny_policy):
    made = []

    def make(rollout=streamed, score=None, tokens=TOKENS, max_slots=64, **options):
        policy = own(tiny_policy)
        stream = Stream(LocalRollouts(EngineUse(use="torch", max_slots=max_slots), policy))
        made.append(stream)
        return Trainer(policy, stream, rollout, options, score, tokens)

    yield make
    for stream in made:
        stream.close()


def known(samples):
    return [(t.row["id"], t.group, t.completion_ids, t.logprobs, t.versions, t.finish, t.reward) for t in samples]


def full_lp(policy, sample):
    with torch.no_grad():
        ids = [*sample.prompt_ids, *sample.completion_ids]
        logits = policy.model(torch.tensor([ids])).logits[0, len(sample.prompt_ids) - 1 : -1].float() / 2.0
    return logits.log_softmax(-1).gather(1, torch.tensor(sample.completion_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"max_staleness": 0, "steps_per_update": 3},
        {"max_staleness": 1, "steps_per_update": 4},
        {"max_staleness": 3, "steps_per_update": 1},
        {"max_staleness": 3, "ahead": 1, "steps_per_update": 2},
        {"max_staleness": 2, "interrupt": False, "steps_per_update": 2},
        {"max_staleness": 2},
        {"max_staleness": 3, "ahead": 2, "interrupt": False},
    ],
)
def test_nothing_is_too_old_and_every_group_is_trained_on_once(train, options):
    trainer = train(**options)
    submitted = []
    for step in range(STEPS):
        samples = trainer.iterate(step)
        submitted.append(trainer.stream.requested)
        ages = [step - version for t in samples for version in t.versions]
        assert min(ages) >= 0
        assert max(ages) <= options["max_staleness"]
        assert len(samples) == GROUPS * N
        # Groups are whole, and numbered as the loop numbers them.
        assert Counter(t.group for t in samples) == dict.fromkeys(range(GROUPS), N)
        assert all(t.reward == len(t.completion_ids) for t in samples)
    # Admission: at version v the plans of v + ahead + 1 iterations have been asked, never one more.
    ahead = options.get("ahead", options["max_staleness"])
    assert submitted == [min(step + ahead + 1, STEPS) for step in range(STEPS)]
    problems = Counter(t.row["id"] for samples in trainer.seen for t in samples)
    assert problems == Counter(
        request.row["id"] for step in range(STEPS) for request in plan_of(step) for _ in range(N)
    )
    assert trainer.stream.groups == []


def test_without_staleness_it_is_what_the_synchronous_loop_samples(train, tiny_policy):
    trainer = train(max_staleness=0)
    policy = own(tiny_policy)
    for step in range(4):
        sampler = Sampler(Engine(policy), policy, Sampling(2.0, TOKENS), 5, step)
        want = sampler.sample(plan_of(step))
        got = trainer.iterate(step)
        assert [t.completion_ids for t in got] == [t.completion_ids for t in want]
        assert [t.group for t in got] == [t.group for t in want]
        for a, b in zip(got, want, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
        change(policy, step)


def test_an_interrupted_completion_records_the_weights_of_each_token(train, tiny_policy):
    trainer = train(max_staleness=3, steps_per_update=3)
    policies = [own(tiny_policy)]
    for step in range(STEPS):
        trainer.iterate(step)
        policies.append(own(trainer.policy))
    mixed = 0
    for samples in trainer.seen:
        for sample in samples:
            assert sample.versions == sorted(sample.versions)
            mixed += len(set(sample.versions)) > 1
            of = [full_lp(policy, sample) for policy in policies]
            want = [of[version][place] for place, version in enumerate(sample.versions)]
            assert sample.logprobs == pytest.approx(want, abs=2e-5)
    assert mixed > 5


@pytest.mark.parametrize("rollout", [one_step_off, streamed])
def test_without_interruption_a_completion_is_of_one_version(train, rollout):
    trainer = train(rollout, **({"max_staleness": 2, "interrupt": False} if rollout is streamed else {}))
    for step in range(STEPS):
        samples = trainer.iterate(step)
        assert all(len(set(t.versions)) == 1 for t in samples)
        if rollout is one_step_off:
            assert {v for t in samples for v in t.versions} == {max(step - 1, 0)}


RUNS = [
    (one_step_off, {}),
    (streamed, {"max_staleness": 2, "steps_per_update": 3}),
    (streamed, {"max_staleness": 3, "ahead": 1, "steps_per_update": 2}),
    (streamed, {"max_staleness": 2, "interrupt": False, "steps_per_update": 3}),
]


@pytest.mark.parametrize(("rollout", "options"), RUNS)
def test_trap_24_a_killed_run_resumes_bit_identical(train, rollout, options):
    """Both write a checkpoint after iterations 1 and 3; one of them is then killed and taken up again."""
    whole = train(rollout, max_slots=6, **options)
    broken = train(rollout, max_slots=6, **options)
    for step in range(STEPS):
        whole.iterate(step)
        if step in (1, 3):
            whole.stream.to_json()
    weights = None
    for step in (0, 1, 2, 3, 4):
        broken.iterate(step)
        if step in (1, 3):
            kept = json.loads(json.dumps(broken.stream.to_json()))
            weights = copy.deepcopy(broken.policy.model.state_dict())
    again = train(rollout, max_slots=6, **options)
    again.seen = broken.seen[:4]
    again.policy.model.load_state_dict(weights)
    again.stream.load(kept)
    again.stream.sync(4)
    for step in range(4, STEPS):
        again.iterate(step)
    assert [known(samples) for samples in again.seen] == [known(samples) for samples in whole.seen]


def test_in_real_time_a_killed_run_loses_nothing(train):
    trainer = train(max_staleness=3)
    for step in range(3):
        trainer.iterate(step)
    kept = json.loads(json.dumps(trainer.stream.to_json()))
    tokens = {
        (group["iteration"], group["place"], i): one["ids"]
        for group in kept["groups"]
        for i, one in enumerate(group["members"])
    }
    again = train(max_staleness=3)
    again.policy.model.load_state_dict(trainer.policy.model.state_dict())
    again.stream.load(kept)
    again.stream.sync(3)
    for step in range(3, STEPS):
        for sample in again.iterate(step):
            assert max(step - version for version in sample.versions) <= 3
    trained = [t for samples in (*trainer.seen[:3], *again.seen) for t in samples]
    assert Counter(t.row["id"] for t in trained) == Counter(
        request.row["id"] for step in range(STEPS) for request in plan_of(step) for _ in range(N)
    )
    # What existed when the checkpoint was written has been kept, token by token.
    finals = [t.completion_ids for samples in again.seen for t in samples]
    assert all(any(final[: len(ids)] == ids for final in finals) for ids in tokens.values())


@pytest.mark.parametrize("options", [{"max_staleness": 2}, {"max_staleness": 4, "ahead": 2}])
def test_trap_23_what_is_slow_is_trained_on_as_much_as_what_is_fast(train, options):
    """Long answers are scored late: only after two short groups more have been, as far as there are any."""
    short, sampled = threading.Semaphore(0), Counter()

    def score(samples, step, place):
        lengths = [len(t.completion_ids) for t in samples]
        sampled.update(lengths)
        if sum(lengths) > N * TOKENS * 0.8:
            for _ in range(2):
                short.acquire(timeout=0.2)
        else:
            short.release(2)

    trainer = train(score=score, **options)
    for step in range(STEPS):
        trainer.iterate(step)
    of_step = [Counter(t.row["id"] for t in samples) for samples in trainer.seen]
    asked_for = [Counter(request.row["id"] for request in plan_of(step) for _ in range(N)) for step in range(STEPS)]
    assert sum(of_step, Counter()) == sum(asked_for, Counter())
    lengths = [len(t.completion_ids) for samples in trainer.seen for t in samples]
    assert Counter(lengths) == sampled
    assert len(set(lengths)) > 2
    metrics = trainer.stream.metrics()
    assert metrics["trained_length"] == metrics["sampled_length"] == pytest.approx(sum(lengths) / len(lengths))
    if "ahead" not in options:
        # Every iteration trains on what was asked for it: nothing is put off either.
        assert of_step == asked_for


def test_slack_lets_what_is_ready_go_before_what_is_slow(train):
    """Fewer iterations ahead than may be stale: a group that is late does not hold the trainer up."""
    gate = threading.Event()

    def score(samples, step, place):
        if (step, place) == (0, 0):
            gate.wait(60)

    trainer = train(score=score, max_staleness=3, ahead=1)
    first = trainer.iterate(0)
    assert "0" not in {t.row["id"] for t in first}
    assert len(first) == GROUPS * N
    trainer.iterate(1)
    gate.set()
    for step in range(2, STEPS):
        trainer.iterate(step)
    assert trainer.stream.groups == []
    at = next(step for step, samples in enumerate(trainer.seen) for t in samples if t.row["id"] == "0")
    assert 1 <= at <= 3


def test_rewards_are_waited_for_while_others_decode(train):
    """The reward of the first group answers only when completions of the next iteration have been scored."""
    later = threading.Event()
    order = []

    def score(samples, step, place):
        if step == 1:
            later.set()
        elif (step, place) == (0, 0):
            assert later.wait(60)
        order.append((step, place))

    trainer = train(score=score, max_staleness=1)
    trainer.iterate(0)
    assert order.index((0, 0)) > min(i for i, (step, _) in enumerate(order) if step == 1)


def test_an_error_in_a_background_thread_ends_the_iteration(train):
    def score(samples, step, place):
        if step == 1:
            raise ZeroDivisionError("no reward")

    trainer = train(score=score, max_staleness=1)
    with pytest.raises(StepError, match="ZeroDivisionError: no reward"):
        deque(map(trainer.iterate, range(3)))


def test_other_parts_of_the_loop_are_served_during_running_requests(train):
    trainer = train(max_staleness=3, steps_per_update=2, max_slots=4)
    trainer.iterate(0)
    under_way = len(trainer.stream.callbacks)
    assert under_way
    asked_for = [Request([5, 6, 7], 3, 1)]
    want = Engine(trainer.policy).generate(asked_for, Sampling(0.7, 8))[0]
    got = trainer.stream.generate(asked_for, Sampling(0.7, 8))[0]
    assert [g.token_ids for g in got] == [g.token_ids for g in want]
    with pytest.raises(StepError, match="cut completions into windows"):
        trainer.stream.generate(asked_for, replace(Sampling(0.7, 8), window=2))


def test_more_ahead_than_may_be_stale_is_refused(train):
    trainer = train(max_staleness=1, ahead=2)
    with pytest.raises(StepError, match="ahead 2 is more than max_staleness 1"):
        trainer.iterate(0)
