"""Costs of steps, measured on one core: input of the simulation of a cluster whose workers are such cores.

    python benchmarks/measure_costs.py [--shape quickstart|larger|async_rollout] [--repeats 5]

One JSON line in the format of `benchmarks/scheduler_simulation.py --costs FILE`: a decode step of the torch engine's
flight as a function of slots in use and context (base + per sequence + per token of context), prompts, the work of an
iteration of the `rl` loop other than generation (update, scores, files) as a function of its tokens, weights through a
file, the start and the end of a stage. All times are processor time with one thread, which other work on the machine
affects less than wall time; waiting for disks or networks is not included. Medians of repeats.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measured_shapes import SHAPES, Shape, cluster_of, make_model, work_of
from measured_updates import update_points
from scipy.optimize import nnls

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

STEPS = 6
"""Decode steps of a repeat."""


def fit_decode(points: Sequence[tuple[int, int, float]]) -> tuple[float, float, float, float]:
    """Base, per sequence, per token of context of seconds = base + n (each + context · length), none negative.

    Points are (sequences, their length, seconds); squares of relative deviations are least. The last number is the
    median of the relative deviations.
    """
    rows = np.array([[1.0, n, n * length] for n, length, _ in points])
    seconds = np.array([taken for *_, taken in points])
    coefficients = nnls(rows / seconds[:, None], np.ones(len(seconds)))[0]
    off = float(np.median(np.abs(rows @ coefficients / seconds - 1)))
    return float(coefficients[0]), float(coefficients[1]), float(coefficients[2]), off


def fit_update(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """An iteration's own seconds and those of a token, of seconds = step + token · tokens, none negative."""
    rows = np.array([[1.0, tokens] for tokens, _ in points])
    seconds = np.array([taken for _, taken in points])
    coefficients = nnls(rows / seconds[:, None], np.ones(len(seconds)))[0]
    return float(coefficients[0]), float(coefficients[1])


def median_of(repeats: int, what: Callable[[], Any]) -> float:
    """Processor seconds of something, the first time left out."""
    taken = []
    for _ in range(repeats + 1):
        began = time.process_time()
        what()
        taken.append(time.process_time() - began)
    return statistics.median(taken[1:])


def decode_points(policy: Any, shape: Shape, repeats: int) -> tuple[list[tuple[int, int, float]], float]:
    """(sequences, context, seconds of a decode step), and seconds of a token of a prompt with its admission."""
    from learning.generation.engines.flight import InFlight
    from learning.generation.engines.torch import Engine
    from learning.samples.engine_protocol import Request, Sampling

    points, prompts = [], []
    for count in shape.slots:
        for context in shape.contexts:
            steps, first = [], []
            for repeat in range(repeats):
                # No token ends a completion.
                flight = InFlight(Engine(policy, max_slots=count), Sampling(1.0, STEPS + 2), -1, count)
                for ticket in range(count):
                    flight.add(ticket, Request([3] * context, 1, repeat * count + ticket))
                taken = []
                for _ in range(STEPS + 1):
                    began = time.process_time()
                    flight.step()
                    taken.append(time.process_time() - began)
                first.append(taken[0])
                steps.append(statistics.median(taken[1:]))
            step = statistics.median(steps)
            points.append((count, context + STEPS // 2, step))
            prompts.append(max(0.0, statistics.median(first) - step) / (count * context))
    return points, statistics.median(prompts)


def sync_seconds(policy: Any, shape: Shape, folder: Path, repeats: int) -> tuple[float, float, int]:
    """Seconds to publish weights and to load them, and their bytes."""
    import copy

    from learning.generation.engines.torch import Engine
    from learning.generation.services.local_rollouts import LocalRollouts
    from learning.generation.weights.local import Files, PolicyReceiver, read_weights
    from learning.generation.weights.protocol import collect_weights
    from learning.models.policy import Policy
    from schemas.use import EngineUse

    size = sum({t.data_ptr(): t.numel() * t.element_size() for t in collect_weights(policy.model).values()}.values())
    if not shape.by_file:
        local = LocalRollouts(EngineUse(use="torch"), policy)
        return 0.0, median_of(repeats, lambda: local.sync(1)), size
    files = Files(policy, folder / "weights")
    publish = median_of(repeats, lambda: files.publish(files.version + 1))
    other = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.max_length)
    receiver = PolicyReceiver(other, Engine(other), read_weights)
    receipt = files.publish(files.version + 1)
    return publish, median_of(repeats, lambda: receiver.load(receipt)), size


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Costs of a shape, each with how it was measured; work and cluster that suit it."""
    import torch

    from learning.models.policy import load_policy

    torch.set_num_threads(1)
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = make_model(shape, folder / "init")
        policy = load_policy(model)
        points, prompt = decode_points(policy, shape, repeats)
        sync, load, size = sync_seconds(policy, shape, folder, repeats)
        updates, start = update_points(shape, model, folder, repeats)
    base, each, context, off = fit_decode(points)
    step, token = fit_update(updates)
    tokens = [n for n, _ in updates]
    swept = f"{min(shape.slots)} to {max(shape.slots)} slots, {min(shape.contexts)} to {max(shape.contexts)} tokens"
    ranged = f"iterations of async_grpo with {min(tokens)} to {max(tokens)} tokens, all but generation"
    way = f"{size} bytes, {{:.2f}} ns a byte, " + ("a file" if shape.by_file else "from tensor to tensor")
    costs = {
        "decode_base": (base, f"measured: flight.step, {swept}; median deviation of the fit {100 * off:.0f} %"),
        "decode_each": (each, "measured: the same fit, for every sequence"),
        "decode_context": (context, "measured: the same fit, for every token before the new ones"),
        "prefill_token": (prompt, "measured: a flight's first step less another, by its prompts' tokens"),
        "train_token": (token, f"measured: {ranged}"),
        "train_step": (step, "measured: the same fit, for an iteration; a reduction between workers is not in it"),
        "sync": (sync, "measured: publish, " + way.format(1e9 * sync / size) if sync else "nothing is published"),
        "load": (load, "measured: load, " + way.format(1e9 * load / size)),
        "swap": (0.0, "assumed: one process samples and trains with the same weights, nothing moves"),
        "start": (start, "measured: a stage before its first iteration and after its last"),
    }
    command = f"python benchmarks/measure_costs.py --shape {name} --repeats {repeats}"
    about = (
        f"One core of a CPU, one thread, processor time; qwen3 of width {shape.hidden}, {shape.layers} layers, "
        f"{shape.heads} heads, feed-forward {shape.feed_forward}, {sum(p.numel() for p in policy.model.parameters())} "
        "parameters in float32, torch engine."
    )
    costs_with_reasons = {key: {"value": float(f"{value:.4g}"), "why": why} for key, (value, why) in costs.items()}
    return {
        "about": about,
        "command": command,
        "cluster": cluster_of(name),
        "costs": costs_with_reasons,
        "work": work_of(name),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="quickstart")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measure(options.shape, options.repeats)))


if __name__ == "__main__":
    main()
