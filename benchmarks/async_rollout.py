"""Synchronous, periodic, partial and fully asynchronous rollouts compared, with an environment that answers late.

    python benchmarks/async_rollout.py [--quick] [--seeds 5] [--steps 30] [--scale 0.05]

An environment scores every completion after (0.5 + length / longest) · X seconds, with X from a Pareto distribution of
shape 1.5 with minimum `--scale` seconds, cut at 60 times that. Without the cut its variance would be infinite; longer
completions wait longer. Waits run concurrently, in the synchronous loop too: it waits for the slowest completion of a
batch, never for the sum. All modes use the loop of `posttrain run`, with the same initial weights, algorithm
(`async_grpo`), problems, random streams and waits, and train on the same number of completions; modes take turns within
a seed. The final reward is that of 512 completions of the trained model on the problems.

Prints one line of JSON: completions trained per second and their ratio to the synchronous loop's, final rewards with
95 % intervals, ages of tokens, quantiles of sampled and of trained lengths, and the share of the synchronous loop's
time that the environment takes.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

LONGEST, GROUPS, N = 24, 8, 4
SHAPE, CUT = 1.5, 60.0
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for an interval of 95 %, by the number of seeds."""
MODES: dict[str, Any] = {
    "synchronous": "whole",
    "periodic": {"use": "periodic", "order": "arrived"},
    "partial": {"use": "streamed", "max_staleness": 2, "ahead": 1},
    "asynchronous": {"use": "streamed", "max_staleness": 8, "ahead": 6},
}


def vowels(completions: list[str]) -> list[float]:
    """Reward: share of vowels."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in completions]


def late(
    rows: list[dict[str, Any]], completions: list[str], groups: list[int], step: int, *, seed: int, scale: float
) -> list[float]:
    """`vowels`, known when the slowest of the completions has been judged."""
    seen: dict[int, int] = {}
    waits = []
    for row, text, group in zip(rows, completions, groups, strict=True):
        sample = seen[group] = seen.get(group, -1) + 1
        waits.append(wait_of(seed, step, row["id"], sample, len(text), scale))
    time.sleep(max(waits, default=0.0))
    return vowels(completions)


def wait_of(seed: int, step: int, problem: str, sample: int, length: int, scale: float) -> float:
    """Seconds that a completion is waited for: the same whichever mode, and whenever, it is sampled."""
    digest = hashlib.sha256(f"{seed} {step} {problem} {sample}".encode()).digest()
    uniform = (int.from_bytes(digest[:8], "big") + 0.5) / 2**64
    return (0.5 + length / LONGEST) * scale * min(uniform ** (-1 / SHAPE), CUT)


def stage_of(rollout: Any, seed: int, options: argparse.Namespace) -> Any:
    """The rl stage of a mode."""
    import yaml

    from schemas.stages.rl import Rl

    preset = Path(__file__).parents[1] / "recipes" / "algorithms" / "async_grpo.yaml"
    sizes = {"generation_batch_size": GROUPS * N, "num_generations": N, "max_completion_length": LONGEST}
    reward = {"use": "async_rollout:late", "seed": seed, "scale": options.scale}
    rest = {"rewards": [reward], "rollout": rollout, "max_steps": options.steps, "learning_rate": options.learning_rate}
    ports = {"kind": "rl", "model": "model", "prompts": "prompts"}
    return Rl.model_validate({**yaml.safe_load(preset.read_text()), **ports, **sizes, **rest, "logging_steps": 1})


def make_inputs(folder: Path, seed: int) -> dict[str, Path]:
    """A small model with random weights, and problems."""
    from learning.data.rows import write_rows
    from schemas.stages.init import Init
    from tasks.context import Context
    from tasks.init import run

    config = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    tokenizer = {"use": "characters", "alphabet": "abcdefghijklmnopqrstuvwxyz"}
    stage = Init.model_validate({"kind": "init", "config": config, "tokenizer": tokenizer, "max_length": 64})
    made = folder / f"init-{seed}"
    made.mkdir()
    run(stage, Context({}, made, made, seed=seed))
    prompts = folder / f"prompts-{seed}"
    prompts.mkdir()
    rest = {"answer": "", "family": "letters", "metadata": "{}"}
    texts = [f"{a}{b}" for a in "abcdefgh" for b in "stuvwxyz"]
    write_rows(prompts, "prompts", [{"id": t, "prompt": [{"role": "user", "content": t}], **rest} for t in texts])
    return {"model": made / "outputs" / "model", "prompts": prompts}


def one(name: str, seed: int, inputs: dict[str, Path], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A mode's run: seconds from the first request to the last step, and what came of it."""
    import pyarrow.parquet as pq

    from tasks.context import Context
    from tasks.rl import run

    work = folder / f"{name}-{seed}"
    (work / "checkpoints").mkdir(parents=True)
    context = Context(inputs, work, work / "checkpoints", seed=seed)
    began = time.perf_counter()
    run(stage_of(MODES[name], seed, options), context)
    seconds = time.perf_counter() - began
    rows = pq.read_table(work / "outputs" / "trajectories" / "trajectories.parquet").to_pylist()
    curve = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    waits: dict[int, list[float]] = {}
    for row in rows:
        length = len(row["completion"])
        waits.setdefault(row["step"], []).append(
            wait_of(seed, row["step"], row["prompt_id"], row["sample"], length, options.scale)
        )
    return {
        "seconds": seconds,
        "completions": sum(row["trained"] for row in rows),
        "lengths": [len(row["token_ids"]) for row in rows],
        "trained_lengths": [len(row["token_ids"]) for row in rows if row["trained"]],
        "staleness": statistics.fmean(point.get("staleness", 0.0) for point in curve),
        "staleness_max": max(point.get("staleness_max", 0.0) for point in curve),
        "older_tokens": statistics.fmean(point.get("older_tokens", 0.0) for point in curve),
        "trainer_wait": sum(point.get("trainer_wait_seconds", 0.0) for point in curve) / seconds,
        "generator_idle": idle_share(curve),
        "environment": sum(max(of) for of in waits.values()) / seconds,
        "reward": final_reward(work / "outputs" / "model", inputs["prompts"], seed),
    }


def idle_share(curve: list[dict[str, Any]]) -> float:
    """Share of all the time that the service told of in which it had nothing to decode; 0 without a service."""
    seconds = [point.get("generator_seconds", 0.0) for point in curve]
    idle = sum(of * point.get("generator_idle_share", 0.0) for of, point in zip(seconds, curve, strict=True))
    return idle / max(sum(seconds), 1e-9)


def final_reward(model: Path, prompts: Path, seed: int) -> float:
    """Mean reward of 512 completions of a trained model."""
    from learning.data.chat import decode, encode_prompt
    from learning.data.rows import read_rows
    from learning.generation.engines.torch import Engine
    from learning.models.policy import load_policy
    from learning.samples.engine_protocol import Request, Sampling

    policy = load_policy(model)
    ids = [encode_prompt(policy.tokenizer, row["prompt"]) for row in read_rows(prompts, "prompts")]
    asked = [Request(of, 512 // len(ids), 1_000_003 * (seed + 1) + i) for i, of in enumerate(ids)]
    made = Engine(policy).generate(asked, Sampling(1.0, LONGEST))
    return statistics.fmean(vowels([decode(policy.tokenizer, g.token_ids) for of in made for g in of]))


def quantiles(lengths: list[int]) -> list[float]:
    """Tenth, first quartile, median, third quartile, ninetieth percentile."""
    ordered = sorted(lengths)
    return [float(ordered[min(len(ordered) - 1, int(q * len(ordered)))]) for q in (0.1, 0.25, 0.5, 0.75, 0.9)]


def summary(name: str, runs: list[dict[str, Any]], against: list[dict[str, Any]]) -> dict[str, Any]:
    """A mode over its seeds, beside the synchronous one."""
    rewards = [run["reward"] for run in runs]
    apart = [run["reward"] - other["reward"] for run, other in zip(runs, against, strict=True)]
    rates = [run["completions"] / run["seconds"] for run in runs]
    faster = [other["seconds"] / run["seconds"] for run, other in zip(runs, against, strict=True)]
    lengths, trained = ([n for run in runs for n in run[key]] for key in ("lengths", "trained_lengths"))
    return {
        "completions_per_second": round(statistics.fmean(rates), 2),
        "times_synchronous": round(statistics.fmean(faster), 2),
        "times_synchronous_lowest": round(min(faster), 2),
        "final_reward": round(statistics.fmean(rewards), 4),
        "final_reward_95": interval(rewards),
        "minus_synchronous_95": interval(apart),
        "staleness_mean": round(statistics.fmean(run["staleness"] for run in runs), 3),
        "staleness_max": max(run["staleness_max"] for run in runs),
        "older_tokens": round(statistics.fmean(run["older_tokens"] for run in runs), 3),
        "trainer_wait_share": round(statistics.fmean(run["trainer_wait"] for run in runs), 3),
        "generator_idle_share": round(statistics.fmean(run["generator_idle"] for run in runs), 3),
        "sampled_lengths": [*quantiles(lengths), round(statistics.fmean(lengths), 3)],
        "trained_lengths": [*quantiles(trained), round(statistics.fmean(trained), 3)],
        "trained_completions": len(trained),
        "seconds": [round(run["seconds"], 1) for run in runs],
    }


def interval(values: list[float]) -> list[float]:
    """95 % interval of a mean, by Student's t."""
    if len(values) < 2:
        return []
    middle = statistics.fmean(values)
    half = T_95.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return [round(middle - half, 4), round(middle + half, 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="two seeds of six iterations: a smoke test, no measurement"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="iterations of every run")
    parser.add_argument("--scale", type=float, default=0.05, help="seconds at which the Pareto distribution begins")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps = 2, 6
    runs_by_mode: dict[str, list[dict[str, Any]]] = {name: [] for name in options.modes}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.seeds):
            inputs = make_inputs(Path(scratch), seed)
            for name in options.modes:
                runs_by_mode[name].append(one(name, seed, inputs, Path(scratch), options))
                print(f"seed {seed} {name}: {runs_by_mode[name][-1]['seconds']:.1f} s", file=sys.stderr)
    first = runs_by_mode[options.modes[0]]
    latency = {"shape": SHAPE, "from_seconds": options.scale, "cut_seconds": options.scale * CUT}
    share = round(statistics.fmean(run["environment"] for run in first), 3)
    modes = {name: summary(name, runs, first) for name, runs in runs_by_mode.items()}
    sizes = {"iterations": options.steps, "completions_per_iteration": GROUPS * N, "seeds": options.seeds}
    line = {
        "benchmark": "async_rollout",
        "latency_pareto": latency,
        "environment_share": share,
        **sizes,
        "modes": modes,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
