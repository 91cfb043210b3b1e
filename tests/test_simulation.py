"""benchmarks/scheduler_simulation.py against closed forms: exact where lengths are fixed, laws of queues where not."""

import importlib.util
import json
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


for name in ("simulated_time", "simulated_cluster", "simulated_stream", "simulation_inputs", "simulated_modes"):
    loaded(name)  # they import each other, as scripts do that lie side by side
for name in ("measured_shapes", "measured_updates"):
    loaded(name)
cluster, modes, inputs = loaded("simulated_cluster"), loaded("simulated_modes"), loaded("simulation_inputs")
simulation, measured, shapes = loaded("scheduler_simulation"), loaded("measure_costs"), loaded("measured_shapes")
against = loaded("simulated_async_rollout")
Cluster, Costs, Work = inputs.Cluster, cluster.Costs, cluster.Work
FREE = Costs(decode_base=1.0, decode_each=0.0, prefill_token=0.0, train_token=0.0)


def fixed(length):
    return lambda rng, count: np.full(count, length)


def work(groups=4, size=2, length=100, latencies=inputs.nothing, lengths=None, prompt=0):
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


def test_steps_take_longer_the_more_tokens_came_before():
    """Two sequences from a prompt of 7, then one: step k takes 1 + n (7 + k + 1/2) / 10.

    (The half: tokens grow evenly within a step.)
    """
    clock = cluster.Clock()
    pool = cluster.Pool(clock, replace(FREE, decode_context=0.1), work(prompt=7), replicas=1, slots=2)
    ended = []
    pool.heard = lambda one: ended.append(clock.now)
    group = cluster.Group(0, 0)
    pool.submit([cluster.Completion(group, n, 0.0) for n in (3, 5)])
    clock.sleep(4.2)
    pool.told()  # to look in the middle changes nothing
    clock.env.run()
    both = sum(1 + 2 * (7 + k + 0.5) / 10 for k in range(3))
    assert ended == pytest.approx([both, both + sum(1 + (7 + k + 0.5) / 10 for k in (3, 4))])
    assert pool.mean_context() == pytest.approx((2 * (7.5 + 8.5 + 9.5) + 10.5 + 11.5) / 8)


def test_a_replica_forgets_the_tokens_of_what_was_taken_out():
    clock = cluster.Clock()
    pool = cluster.Pool(clock, replace(FREE, decode_context=0.1), work(prompt=7), replicas=1, slots=3)
    group = cluster.Group(0, 0)
    pool.submit([cluster.Completion(group, n, 0.0) for n in (3, 5, 9)])
    clock.sleep(7.0)
    left = pool.suspend()
    assert pool.replicas[0].context == 0
    pool.submit(left)
    assert pool.replicas[0].context == sum(7 + one.done for one in left)
    clock.env.run()
    assert pool.replicas[0].context == pytest.approx(0)


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
    simulated = modes.MODES[mode](SMALL, UPDATE, work(), 12, 0, **partial)
    assert simulated.seconds == pytest.approx([seconds] * len(simulated.seconds))
    assert simulated.training == pytest.approx(training)
    # All slots are full whenever a replica decodes, and 800 tokens are decoded in every iteration.
    slots = 8 if mode in modes.COLOCATED else 4
    assert simulated.filled == pytest.approx(800 / seconds / slots)
    assert set(simulated.staleness) == ages


def test_an_iteration_in_step_takes_as_long_as_its_slowest():
    """Lengths 1, waits uniform in (0, 1): the mean of the slowest of n is n / (n + 1)."""
    waits = work(groups=10, size=1, length=1, latencies=lambda rng, count: rng.random(count))
    simulated = modes.synchronous(Cluster(10, 1, 1), FREE, waits, 2000, 0)
    seconds = np.array(simulated.seconds) - 1
    assert seconds.mean() == pytest.approx(10 / 11, abs=4 * seconds.std() / len(seconds) ** 0.5)


def test_with_room_for_all_the_trainer_sets_the_pace_and_little_law_holds():
    """Completions in flight = rate · mean time, whatever the lengths: a queue with a server for everybody (M/G/∞)."""
    lengths = inputs.tokens_of(inputs.heavy(50, 1.0, 2000))
    asked = work(groups=50, size=1, lengths=lengths)
    costs = replace(FREE, train_step=400.0)
    loops = []
    real = modes.Loop
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
        modes.Loop = Watched
        simulated = modes.asynchronous(Cluster(1000, 1, 1, share=0.9), costs, asked, 80, 0, max_staleness=20)
    finally:
        modes.Loop = real
    assert simulated.seconds == pytest.approx([400.0] * len(simulated.seconds))
    mean = float(np.mean(simulated.tokens)) / 50
    steady = held[len(held) // 4 : -len(held) // 4]
    assert np.mean(steady) == pytest.approx(50 / 400 * mean, rel=0.1)


def test_without_a_trainer_to_wait_for_replicas_are_always_full():
    lengths = inputs.tokens_of(inputs.heavy(50, 1.0, 400))
    simulated = modes.asynchronous(
        Cluster(5, 1, 4, share=0.8), FREE, work(groups=32, size=2, lengths=lengths), 60, 0, max_staleness=4
    )
    assert simulated.filled == pytest.approx(1.0, abs=0.02)
    assert max(simulated.staleness) <= 4


@pytest.mark.parametrize("most", [0, 1, 3])
def test_nothing_is_older_than_admitted_and_no_length_is_preferred(most):
    lengths = inputs.tokens_of(inputs.heavy(40, 1.2, 2000))
    asked = work(groups=16, size=4, lengths=lengths, latencies=inputs.heavy(5, 1.5, 500))
    simulated = modes.asynchronous(SMALL, UPDATE, asked, 120, 1, max_staleness=most)
    assert max(simulated.staleness) <= most
    drawn = lengths(np.random.default_rng(5), 100_000)
    spread = drawn.std() / (64 * len(simulated.lengths)) ** 0.5
    assert np.mean(simulated.lengths) == pytest.approx(drawn.mean(), abs=4 * spread)


def test_partial_rollouts_train_every_token_once():
    lengths = inputs.tokens_of(inputs.heavy(40, 1.2, 400))
    simulated = modes.partial_rollouts(SMALL, UPDATE, work(groups=8, size=2, lengths=lengths), 60, 0)
    assert sum(simulated.staleness.values()) == sum(simulated.tokens)
    assert max(simulated.staleness) > 0
    whole = modes.synchronous(SMALL, UPDATE, work(groups=8, size=2, lengths=lengths), 60, 0)
    rates = [sum(one.tokens) / sum(one.seconds) for one in (simulated, whole)]
    assert rates[0] > 1.1 * rates[1]


def test_equal_seeds_give_equal_runs():
    asked = work(lengths=inputs.tokens_of(inputs.heavy(40, 1.0, 400)))
    one, other = (modes.asynchronous(SMALL, UPDATE, asked, 20, 7) for _ in range(2))
    assert one == other


def test_the_costs_of_the_file_say_where_they_come_from():
    costs_file = inputs.told_of("assumed")
    for part in ("costs", "work", "cluster"):
        assert all(value["why"] for value in costs_file[part].values())
    costs, asked, size = inputs.costs_of(costs_file, 1000)
    assert size.apart == (188, 248)
    assert asked.lengths(np.random.default_rng(0), 1000).max() <= asked.longest
    assert costs.decode_base == pytest.approx(65.6e9 / (4 * 3.35e12 * 0.6), rel=0.01)
    assert costs.prefill_token == pytest.approx(2 * 32.8e9 / (4 * 989e12 * 0.5), rel=0.01)
    assert costs.train_token == pytest.approx(8 * 32.8e9 / (989e12 * 0.4), rel=0.01)


def test_costs_come_by_name_or_from_a_file(tmp_path):
    costs_file = inputs.told_of("measured")
    (tmp_path / "mine.json").write_text(json.dumps(costs_file))
    assert inputs.told_of(str(tmp_path / "mine.json")) == costs_file
    for name in ("measured", "measured_larger", "async_rollout"):
        of = inputs.told_of(name)
        assert of["command"].startswith("python benchmarks/measure_costs.py --shape ")
        costs, asked, size = inputs.costs_of(of, 1000)
        assert size.gpus_per_replica == 1
        assert min(costs.decode_base, costs.decode_each, costs.train_token, costs.load) > 0
        assert asked.lengths(np.random.default_rng(0), 1000).max() <= asked.longest
    with pytest.raises(SystemExit, match="neither a file nor one of assumed, measured"):
        inputs.told_of("guessed")
    (tmp_path / "half.json").write_text(json.dumps({"costs": {}}))
    with pytest.raises(SystemExit, match="lacks cluster, work"):
        inputs.told_of(str(tmp_path / "half.json"))


def test_measurements_have_the_form_that_the_simulator_reads():
    """Work and cluster of every shape are taken; names of costs are those of `Costs`."""
    for name in shapes.SHAPES:
        costs = {"decode_base": {"value": 1.0}, "decode_each": {"value": 0.0}, "prefill_token": {"value": 0.0}}
        costs_file = {"costs": costs | {"train_token": {"value": 0.0}}}
        costs_file |= {"cluster": shapes.cluster_of(name), "work": shapes.work_of(name)}
        assert inputs.costs_of(costs_file, 10)[2].apart[0] == 8


def test_the_fit_finds_what_timings_were_made_of():
    points = [(n, c, 2e-3 + n * (3e-5 + 4e-7 * c)) for n in (1, 4, 16, 64) for c in (16, 128, 512)]
    assert measured.fit_decode(points) == pytest.approx((2e-3, 3e-5, 4e-7, 0.0), abs=1e-12)
    # Sizes of all orders count alike: relative noise of 5 % leaves every coefficient within 10 %.
    rng = np.random.default_rng(0)
    noisy = [(n, c, t * rng.uniform(0.95, 1.05)) for n, c, t in points * 40]
    assert measured.fit_decode(noisy)[:3] == pytest.approx((2e-3, 3e-5, 4e-7), rel=0.1)
    assert measured.fit_update([(n, 0.01 + 1e-4 * n) for n in (10, 100, 5000)]) == pytest.approx((0.01, 1e-4))
    # Nothing becomes negative, whatever was measured.
    assert min(measured.fit_decode([(1, 1, 1.0), (10, 1, 0.9), (1, 10, 0.8)])) >= 0
    assert min(measured.fit_update([(10, 1.0), (100, 20.0)])) >= 0


def test_waits_are_those_of_the_benchmark():
    """Pareto: P(X > x) = (0.05 / x)^1.5, cut at 3 s; half as long for nothing, half as long again for the longest."""
    given = {key: value["value"] for key, value in shapes.work_of("async_rollout").items()}
    asked = inputs.work_of(given)
    drawn = asked.latencies(np.random.default_rng(0), 200_000)
    assert drawn.min() == pytest.approx(0.05, rel=1e-3)
    assert drawn.max() == pytest.approx(3.0)
    for x in (0.1, 0.5, 2.0):
        share = (0.05 / x) ** 1.5
        assert (drawn > x).mean() == pytest.approx(share, abs=4 * (share / len(drawn)) ** 0.5)
    assert asked.slower(np.array([0, 12, 24])).tolist() == [0.5, 1.0, 1.5]
    mean = (1 - (1 - given["stops"]) ** 24) / given["stops"]
    assert asked.lengths(np.random.default_rng(1), 200_000).mean() == pytest.approx(mean, rel=0.01)


def test_the_end_of_a_run_asks_for_nothing_new_and_begins_with_its_start():
    whole, ends = (
        modes.asynchronous(SMALL, replace(UPDATE, start=7.0), work(), 10, 0, ends=ends) for ends in (False, True)
    )
    # 200 s of generation an iteration, one before the next; the last update of 100 s follows the last generation.
    assert ends.total == pytest.approx(7 + 10 * 200 + 100)
    assert whole.total == pytest.approx(ends.total)


def test_equal_latencies_are_hidden_by_as_much_as_is_asked_ahead():
    """Nothing costs anything but a wait of 1 s: in step an iteration takes 1 s; asked a ahead, a + 1 of them do."""
    asked = work(groups=2, size=1, length=1, latencies=lambda rng, count: np.ones(count))
    predictions = against.predicted(replace(FREE, decode_base=1e-9), asked, 64, 30, 1)
    assert predictions["synchronous"]["seconds"] == pytest.approx(30)
    assert predictions["periodic"]["ratio"] == pytest.approx(1)
    assert predictions["partial"]["seconds"] == pytest.approx(15)
    assert predictions["asynchronous"]["ratio"] == pytest.approx(30 / 5, rel=1e-3)
    real = {"seconds": [20.0, 40.0], "times_synchronous": 1.0}
    comparison = against.compared({"synchronous": predictions["synchronous"]}, {"modes": {"synchronous": real}})
    assert (comparison["synchronous"]["seconds_off"], comparison["synchronous"]["ratio_off"]) == (0.0, 0.0)


def test_halving_the_only_cost_doubles_the_rate():
    asked = work(lengths=fixed(100))
    gains = simulation.bottlenecks("synchronous", SMALL, FREE, asked, 8)
    assert gains["decoding"] == 2.0
    assert gains["training"] == gains["weight sync"] == gains["environment"] == 1.0
