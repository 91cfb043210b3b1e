"""benchmarks/scheduler_simulation.py against closed forms: exact where lengths are fixed, laws of queues where not."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def loaded(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


cluster = loaded("simulated_cluster")
simulation = loaded("scheduler_simulation")
Cluster, Costs, Work = simulation.Cluster, cluster.Costs, cluster.Work
FREE = Costs(decode_base=1.0, decode_each=0.0, prefill_token=0.0, train_token=0.0)


def fixed(length):
    return lambda rng, count: np.full(count, length)


def work(groups=4, size=2, length=100, latencies=simulation.nothing, lengths=None, prompt=0):
    return Work(groups, size, prompt, lengths or fixed(length), latencies)


def test_sequences_share_a_replica():
    clock = cluster.Clock()
    costs = replace(FREE, decode_each=0.5)
    pool = cluster.Pool(clock, costs, work(), replicas=1, slots=4)
    ended = []
    pool.heard = lambda one: ended.append((one.length, clock.now))
    group = cluster.Group(0, 0)
    pool.submit([cluster.Completion(group, n, 0.0) for n in (1, 3)])
    clock.env.run()
    # One step of two (2 s), two of one (1.5 s each).
    assert ended == [(1, 2.0), (3, 5.0)]
    assert pool.told() == (5.0, 4.0)


def test_prompts_hold_up_what_runs_and_the_queue_waits_for_room():
    clock = cluster.Clock()
    pool = cluster.Pool(clock, replace(FREE, prefill_token=0.1), work(prompt=20), replicas=1, slots=1)
    ended = []
    pool.heard = lambda one: ended.append(clock.now)
    group = cluster.Group(0, 0)
    pool.submit([cluster.Completion(group, 5, 0.0) for _ in range(2)])
    clock.env.run()
    assert ended == pytest.approx([2 + 5, 14])


def test_new_weights_stop_a_replica_and_are_written_down_token_by_token():
    clock = cluster.Clock()
    costs = replace(FREE, load=3.0, prefill_token=0.5)
    pool = cluster.Pool(clock, costs, work(), replicas=1, slots=1)
    one = cluster.Completion(cluster.Group(0, 0), 10, 0.0)
    pool.submit([one])
    clock.sleep(4.0)
    pool.load(1, recompute=True)
    clock.env.run()
    assert one.spans == [(0, 4), (1, 6)]
    assert clock.now == pytest.approx(4 + 3 + 4 * 0.5 + 6)


# 8 completions of 100 tokens at 1 s a token on 8 slots; apart, on 4 slots, they take 200 s. The update takes 200 token
# seconds a GPU: 50 s on all four, 100 s on two.
SMALL, UPDATE = Cluster(4, 1, 2, share=0.5), replace(FREE, train_token=0.25)


@pytest.mark.parametrize(
    ("mode", "seconds", "training", "ages"),
    [
        ("synchronous", 150, 1 / 3, {0}),
        ("partial", 150, 1 / 3, {0}),
        # What arrives at 100 s is trained on by 150 s, what arrives at 200 s by 250 s.
        ("periodic", 250, 100 / 250, {0}),
        ("one_step_off", 200, 100 / 200, {1}),
        ("asynchronous", 200, 100 / 200, {0, 1}),
    ],
)
def test_equal_lengths_give_exact_utilisation(mode, seconds, training, ages):
    partial = {"overprovision": 1.0} if mode == "partial" else {}
    found = simulation.MODES[mode](SMALL, UPDATE, work(), 12, 0, **partial)
    assert found.seconds == pytest.approx([seconds] * len(found.seconds))
    assert found.training == pytest.approx(training)
    # All slots are full whenever a replica decodes, and 800 tokens are decoded in every iteration.
    slots = 8 if mode in simulation.COLOCATED else 4
    assert found.filled == pytest.approx(800 / seconds / slots)
    assert set(found.staleness) == ages


def test_an_iteration_in_step_takes_as_long_as_its_slowest():
    """Lengths 1, waits uniform in (0, 1): the mean of the slowest of n is n / (n + 1)."""
    waits = work(groups=10, size=1, length=1, latencies=lambda rng, count: rng.random(count))
    found = simulation.synchronous(Cluster(10, 1, 1), FREE, waits, 2000, 0)
    seconds = np.array(found.seconds) - 1
    assert seconds.mean() == pytest.approx(10 / 11, abs=4 * seconds.std() / len(seconds) ** 0.5)


def test_with_room_for_all_the_trainer_sets_the_pace_and_little_law_holds():
    """Completions in flight = rate · mean time, whatever the lengths: a queue with a server for everybody (M/G/∞)."""
    lengths = simulation.tokens_of(simulation.heavy(50, 1.0, 2000))
    asked = work(groups=50, size=1, lengths=lengths)
    costs = replace(FREE, train_step=400.0)
    loops = []
    real = simulation.Loop
    held = []

    class Watched(real):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            loops.append(self)
            self.clock.env.process(self.look())

        def look(self):
            while True:
                yield self.clock.env.timeout(10.0)
                held.append(sum(len(r.running) for r in self.pool.replicas))

    try:
        simulation.Loop = Watched
        found = simulation.asynchronous(Cluster(1000, 1, 1, share=0.9), costs, asked, 80, 0, max_staleness=20)
    finally:
        simulation.Loop = real
    assert found.seconds == pytest.approx([400.0] * len(found.seconds))
    mean = float(np.mean(found.tokens)) / 50
    steady = held[len(held) // 4 : -len(held) // 4]
    assert np.mean(steady) == pytest.approx(50 / 400 * mean, rel=0.1)


def test_without_a_trainer_to_wait_for_replicas_are_always_full():
    lengths = simulation.tokens_of(simulation.heavy(50, 1.0, 400))
    found = simulation.asynchronous(
        Cluster(5, 1, 4, share=0.8), FREE, work(groups=32, size=2, lengths=lengths), 60, 0, max_staleness=4
    )
    assert found.filled == pytest.approx(1.0, abs=0.02)
    assert max(found.staleness) <= 4


@pytest.mark.parametrize("most", [0, 1, 3])
def test_nothing_is_older_than_admitted_and_no_length_is_preferred(most):
    lengths = simulation.tokens_of(simulation.heavy(40, 1.2, 2000))
    asked = work(groups=16, size=4, lengths=lengths, latencies=simulation.heavy(5, 1.5, 500))
    found = simulation.asynchronous(SMALL, UPDATE, asked, 120, 1, max_staleness=most)
    assert max(found.staleness) <= most
    drawn = lengths(np.random.default_rng(5), 100_000)
    spread = drawn.std() / (64 * len(found.lengths)) ** 0.5
    assert np.mean(found.lengths) == pytest.approx(drawn.mean(), abs=4 * spread)


def test_partial_rollouts_train_every_token_once():
    lengths = simulation.tokens_of(simulation.heavy(40, 1.2, 400))
    found = simulation.partial_rollouts(SMALL, UPDATE, work(groups=8, size=2, lengths=lengths), 60, 0)
    assert sum(found.staleness.values()) == sum(found.tokens)
    assert max(found.staleness) > 0
    whole = simulation.synchronous(SMALL, UPDATE, work(groups=8, size=2, lengths=lengths), 60, 0)
    rates = [sum(one.tokens) / sum(one.seconds) for one in (found, whole)]
    assert rates[0] > 1.1 * rates[1]


def test_equal_seeds_give_equal_runs():
    asked = work(lengths=simulation.tokens_of(simulation.heavy(40, 1.0, 400)))
    one, other = (simulation.asynchronous(SMALL, UPDATE, asked, 20, 7) for _ in range(2))
    assert one == other


def test_the_costs_of_the_file_say_where_they_come_from():
    told = simulation.told_of("assumed")
    for part in ("costs", "work", "cluster"):
        assert all(value["why"] for value in told[part].values())
    costs, asked, size = simulation.costs_of(told, 1000)
    assert size.apart == (188, 248)
    assert asked.lengths(np.random.default_rng(0), 1000).max() <= asked.longest
    assert costs.decode_base == pytest.approx(65.6e9 / (4 * 3.35e12 * 0.6), rel=0.01)
    assert costs.prefill_token == pytest.approx(2 * 32.8e9 / (4 * 989e12 * 0.5), rel=0.01)
    assert costs.train_token == pytest.approx(8 * 32.8e9 / (989e12 * 0.4), rel=0.01)


def test_halving_the_only_cost_doubles_the_rate():
    asked = work(lengths=fixed(100))
    gains = simulation.bottlenecks("synchronous", SMALL, FREE, asked, 8)
    assert gains["decoding"] == 2.0
    assert gains["training"] == gains["weight sync"] == gains["environment"] == 1.0
