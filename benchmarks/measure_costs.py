"""What steps cost on one core, measured: input of the simulation of a cluster whose workers are such cores.

    python benchmarks/measure_costs.py [--shape quickstart|larger|async_rollout] [--repeats 5]

One JSON line in the form that `benchmarks/scheduler_simulation.py --costs FILE` takes: a decode step of the torch
engine's flight over slots in use and context (base + per sequence + per token of context), prompts, all that an
iteration of the `rl` loop does beside generation (update, scores, files) over its tokens, weights through a file, the
beginning and the end of a stage. Everything is the time of a processor at one thread, which other work on the machine
disturbs less than time on the wall: what waits for disks or networks is not in it. Medians of repeats.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

STEPS = 6
"""Decode steps of a repeat."""
ITERATIONS = 4
"""Of a run of the loop; the first, which allocates, is not counted."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Shape:
    """A model, and what is measured with it."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int
    slots: Sequence[int]
    """Sequences at once at which a decode step is measured."""
    contexts: Sequence[int]
    """Tokens before the one that is decoded."""
    groups: Sequence[int]
    """Groups of an iteration at which the update is measured."""
    size: int
    longest: int
    """Tokens of a completion at most, while the update is measured."""
    tokenizer: dict[str, str]
    tied: bool = True
    by_file: bool = True
    """Whether weights go through a file, or from tensor to tensor in the process."""

    @property
    def config(self) -> dict[str, Any]:
        """As an `init` stage takes it."""
        width = self.hidden // self.heads
        heads = {"num_attention_heads": self.heads, "num_key_value_heads": self.key_value_heads, "head_dim": width}
        sizes = {"hidden_size": self.hidden, "intermediate_size": self.feed_forward, "num_hidden_layers": self.layers}
        return {"model_type": "qwen3", **sizes, **heads, "tie_word_embeddings": self.tied}


PLAIN, SMALL = {"use": "characters"}, {"use": "characters", "alphabet": LETTERS}
SHAPES = {
    "quickstart": Shape(96, 288, 4, 4, 4, (1, 4, 16, 48), (16, 128, 512), (2, 8, 24), 8, 256, PLAIN),
    "larger": Shape(256, 768, 8, 8, 4, (1, 4, 16, 32), (16, 128, 512), (1, 2, 4), 8, 256, PLAIN),
    "async_rollout": Shape(64, 128, 2, 4, 2, (1, 8, 32, 128), (4, 12, 24), (2, 8, 32), 4, 24, SMALL, False, False),
}


def fit_decode(points: Sequence[tuple[int, int, float]]) -> tuple[float, float, float, float]:
    """Base, per sequence, per token of context of seconds = base + n (each + context · length), none negative.

    Points are (sequences, their length, seconds); squares of relative deviations are least. The last number is the
    median of the relative deviations.
    """
    rows = np.array([[1.0, n, n * length] for n, length, _ in points])
    seconds = np.array([taken for *_, taken in points])
    found = nnls(rows / seconds[:, None], np.ones(len(seconds)))[0]
    off = float(np.median(np.abs(rows @ found / seconds - 1)))
    return float(found[0]), float(found[1]), float(found[2]), off


def fit_update(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """An iteration's own seconds and those of a token, of seconds = step + token · tokens, none negative."""
    rows = np.array([[1.0, tokens] for tokens, _ in points])
    seconds = np.array([taken for _, taken in points])
    found = nnls(rows / seconds[:, None], np.ones(len(seconds)))[0]
    return float(found[0]), float(found[1])


def median_of(repeats: int, what: Callable[[], Any]) -> float:
    """Processor seconds of something, the first time left out."""
    taken = []
    for _ in range(repeats + 1):
        began = time.process_time()
        what()
        taken.append(time.process_time() - began)
    return statistics.median(taken[1:])


def make_model(shape: Shape, folder: Path) -> Path:
    """Random weights of a shape."""
    from schemas.stages.init import Init
    from tasks.context import Context
    from tasks.init import run

    values = {"kind": "init", "config": shape.config, "tokenizer": shape.tokenizer, "max_length": 2048}
    folder.mkdir()
    run(Init.model_validate(values), Context({}, folder, folder, seed=0))
    return folder / "outputs" / "model"


def decode_points(policy: Any, shape: Shape, repeats: int) -> tuple[list[tuple[int, int, float]], float]:
    """(sequences, context, seconds of a decode step), and seconds of a token of a prompt with its admission."""
    from learning.engines.flight import InFlight
    from learning.engines.protocol import Request, Sampling
    from learning.engines.torch import Engine

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

    from learning.asynchrony.local_rollouts import LocalRollouts
    from learning.distributed.weight_sync import weights_of
    from learning.distributed.weight_sync_local import Files, PolicyReceiver, from_file
    from learning.engines.torch import Engine
    from learning.models.policy import Policy
    from schemas.use import EngineUse

    size = sum({t.data_ptr(): t.numel() * t.element_size() for t in weights_of(policy.model).values()}.values())
    if not shape.by_file:
        local = LocalRollouts(EngineUse(use="torch"), policy)
        return 0.0, median_of(repeats, lambda: local.sync(1)), size
    files = Files(policy, folder / "weights")
    publish = median_of(repeats, lambda: files.publish(files.version + 1))
    other = Policy(copy.deepcopy(policy.model), policy.tokenizer, policy.max_length)
    receiver = PolicyReceiver(other, Engine(other), from_file)
    receipt = files.publish(files.version + 1)
    return publish, median_of(repeats, lambda: receiver.load(receipt)), size


def rl_stage(groups: int, size: int, longest: int) -> Any:
    """A stage of `async_grpo` that samples in one go: groups of a size, completions of at most so many tokens."""
    import yaml

    from schemas.stages.rl import Rl

    preset = Path(__file__).parents[1] / "recipes" / "algorithms" / "async_grpo.yaml"
    ports = {"kind": "rl", "model": "model", "prompts": "prompts", "rewards": ["async_rollout:vowels"]}
    sizes = {"generation_batch_size": groups * size, "num_generations": size, "logging_steps": 1}
    rest = {"max_completion_length": longest, "max_steps": ITERATIONS, "learning_rate": 1e-5}
    return Rl.model_validate({**yaml.safe_load(preset.read_text()), **ports, **sizes, **rest})


class Watched:
    """Processor seconds of the parts of `tasks.rl.run`, while it runs."""

    def __init__(self) -> None:
        self.iterations: list[tuple[int, float]] = []
        """Tokens that were trained on, prompts once a group, and seconds beside generation."""
        self.ends = 0.0
        """Seconds before the first iteration and after the last."""
        self._tokens = 0

    def run(self, stage: Any, context: Any) -> None:
        """Run a stage; what its module calls is put back afterwards."""
        from tasks import rl

        names = ("iterate", "learn", "prepare", "publish")
        own = {name: getattr(rl, name) for name in names}

        def ended(name: str) -> Callable[..., Any]:
            def timed(*args: Any) -> Any:
                began = time.process_time()
                found = own[name](*args)
                self.ends += time.process_time() - began
                return found

            return timed

        def learn(loop: Any, stage: Any, batch: Any, *args: Any) -> Any:
            self._tokens = len(batch.tokens["learn"])
            return own["learn"](loop, stage, batch, *args)

        def iterate(loop: Any, *args: Any) -> None:
            generate, generating = loop.engine.generate, []

            def timed(*asked: Any) -> Any:
                began = time.process_time()
                found = generate(*asked)
                generating.append(time.process_time() - began)
                return found

            loop.engine.generate, began = timed, time.process_time()
            own["iterate"](loop, *args)
            self.iterations.append((self._tokens, time.process_time() - began - sum(generating)))
            loop.engine.generate = generate

        wrapped = {"iterate": iterate, "learn": learn, "prepare": ended("prepare"), "publish": ended("publish")}
        try:
            for name in names:
                setattr(rl, name, wrapped[name])
            rl.run(stage, context)
        finally:
            for name in names:
                setattr(rl, name, own[name])


def update_points(shape: Shape, model: Path, folder: Path, repeats: int) -> tuple[list[tuple[int, float]], float]:
    """(tokens, seconds) of iterations at every number of groups, and seconds of a stage's beginning and end."""
    from learning.texts.rows import write_rows
    from tasks.context import Context

    prompts = folder / "prompts"
    prompts.mkdir()
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    texts = [f"{a}{b}" for a in LETTERS[:8] for b in LETTERS[-8:]]
    write_rows(prompts, "prompts", [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in texts])
    points, ends = [], []
    # One with hardly a token tells what an iteration takes whatever its tokens.
    for sizes in [(1, 2, 2), *((groups, shape.size, shape.longest) for groups in shape.groups)]:
        for repeat in range(max(1, repeats // 2)):
            work = folder / f"{sizes[0]}-{sizes[1]}-{repeat}"
            (work / "checkpoints").mkdir(parents=True)
            watched = Watched()
            context = Context({"model": model, "prompts": prompts}, work, work / "checkpoints", seed=repeat)
            watched.run(rl_stage(*sizes), context)
            points += watched.iterations[1:]
            ends.append(watched.ends)
    return points, statistics.median(ends)


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
    told = {key: {"value": float(f"{value:.4g}"), "why": why} for key, (value, why) in costs.items()}
    return {"about": about, "command": command, "cluster": cluster_of(name), "costs": told, "work": work_of(name)}


def cluster_of(name: str) -> dict[str, Any]:
    """Workers of the simulation."""
    if name == "async_rollout":
        return _told(gpus_per_replica=(1, "the generator is one thread"), slots=(256, "the torch engine's own"))
    return _told(gpus_per_replica=(1, "a worker is one core"), slots=(24, "as many in all as the assumed cluster has"))


def work_of(name: str) -> dict[str, Any]:
    """Work of the simulation: that of the assumed cluster at 1/32 of its lengths, or that of the benchmark."""
    late = "that of benchmarks/async_rollout.py"
    waits = {"latency_from": (0.05, late), "latency_shape": (1.5, late), "latency_cut": (60.0, late)}
    if name == "async_rollout":
        sizes = {"groups": (8, late), "size": (4, late), "prompt": (5, late), "longest": (24, late)}
        return _told(**sizes, stops=(0.0125, "a mean of 20.9 tokens, cut at 24: that of its completions"), **waits)
    shorter = "1/32 of the assumed work's"
    sizes = {"groups": (512, "as in the assumed work"), "size": (16, "as in the assumed work"), "prompt": (16, shorter)}
    spread = {"median_length": (125, shorter), "length_sigma": (1.0, "as there"), "longest": (1024, shorter)}
    return _told(**sizes, **spread, **waits)


def _told(**values: tuple[float, str]) -> dict[str, Any]:
    return {key: {"value": value, "why": why} for key, (value, why) in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="quickstart")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measure(options.shape, options.repeats)))


if __name__ == "__main__":
    main()
