"""Kind control compared with TorchRL run bare: SAC on Pendulum and PPO on CartPole, same networks, batches and updates.

    python benchmarks/control_training.py [--rounds 3] [--workloads sac ppo] [--steps 5000]

The bare side is a script on TorchRL's own collector, buffer, loss and target update; ours is the task of kind control,
with curves and checkpoints. Each run has its own process, the sides take turns, and each reports its own time of
training, without imports: seconds and CPU seconds (median, smallest and largest over the rounds). The line also gives
the mean return of 20 episodes without exploration, per side and round.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from timing import spread

HIDDEN = {"sac": [64, 64], "ppo": [64, 64]}
ENV = {"sac": "Pendulum-v1", "ppo": "CartPole-v1"}
RATE, BATCH, STARTS = 1e-3, 256, 500
ENVS, ROLLOUT, PASSES = 8, 128, 10
EPISODES = 20


def settings(workload: str, steps: int) -> dict[str, Any]:
    """Return the stage that both sides run."""
    common = {"kind": "control", "env": ENV[workload], "loss": workload, "learning_rate": RATE, "batch_size": BATCH}
    common |= {"environment_steps": steps, "networks": {"hidden_sizes": HIDDEN[workload], "activation": "tanh"}}
    if workload == "sac":
        return common | {"learning_starts": STARTS}
    return common | {"num_envs": ENVS, "rollout_steps": ROLLOUT, "num_iterations": PASSES, "max_grad_norm": 0.5}


def run_ours(workload: str, steps: int, seed: int) -> dict[str, float]:
    """Train by the task of kind control."""
    from learning.control.policies.policy import load_control_policy
    from schemas.stages.control import Control
    from tasks.context import Context
    from tasks.control import run

    stage = Control.model_validate(settings(workload, steps))
    with tempfile.TemporaryDirectory() as folder:
        context = Context({}, Path(folder), Path(folder) / "checkpoints", seed=seed)
        started, cpu = time.perf_counter(), time.process_time()
        run(stage, context)
        measured = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        policy = load_control_policy(Path(folder) / "outputs" / "model")
    return measured | {"return": evaluate(policy.actor, workload)}


def run_bare(workload: str, steps: int, seed: int) -> dict[str, float]:
    """Train by a script on TorchRL's own parts."""
    import torch
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import GymEnv, SerialEnv

    from learning.control.losses import standard as losses
    from learning.control.networks.build import Networks
    from learning.control.stepping.spaces import read_spaces
    from schemas.control import NetworkSettings

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    import gymnasium

    spaces = read_spaces(gymnasium.make(ENV[workload]))
    shape = NetworkSettings(hidden_sizes=HIDDEN[workload], activation="tanh")
    algorithm = getattr(losses, workload)(Networks(spaces, shape))
    optimizer = torch.optim.Adam([p for p in algorithm.loss.parameters() if p.requires_grad], lr=RATE, foreach=True)

    def make() -> GymEnv:
        return GymEnv(ENV[workload], categorical_action_encoding=True)

    def update(batch: Any, clip: float | None) -> None:
        terms = algorithm.loss(batch)
        optimizer.zero_grad(set_to_none=True)
        torch.stack([terms[name] for name in algorithm.terms if name in terms.keys()]).sum().backward()  # noqa: SIM118
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(algorithm.loss.parameters(), clip)
        optimizer.step()
        algorithm.update_targets()

    started, cpu = time.perf_counter(), time.process_time()
    if workload == "sac":
        collector = Collector(
            make(), algorithm.actor, frames_per_batch=1, total_frames=steps, init_random_frames=STARTS
        )
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(steps), batch_size=BATCH)
        for frames, data in enumerate(collector, start=1):
            buffer.extend(data.reshape(-1))
            if frames >= STARTS:
                update(buffer.sample(), None)
    else:
        env = SerialEnv(ENVS, make)
        collector = Collector(env, algorithm.actor, frames_per_batch=ENVS * ROLLOUT, total_frames=steps)
        for data in collector:
            with torch.no_grad():
                algorithm.advantage(data)
            flat = data.reshape(-1)
            for _ in range(PASSES):
                for places in torch.randperm(len(flat)).split(BATCH):
                    update(flat[places], 0.5)
    collector.shutdown()
    measured = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    return measured | {"return": evaluate(algorithm.actor, workload)}


def evaluate(actor: Any, workload: str) -> float:
    """Return the mean return of some episodes without exploration."""
    from learning.control.policies.playing import play
    from learning.control.stepping.worlds import gymnasium

    return float(play(lambda: gymnasium(id=ENV[workload]), actor, range(EPISODES), 0, "benchmark").mean())


def main() -> None:
    """Run the sides in turns and print one line of JSON per workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", default=["sac", "ppo"], choices=["sac", "ppo"])
    parser.add_argument("--steps", type=int, help="environment steps; default 5,000 for sac, 50,000 for ppo")
    parser.add_argument("--side", choices=["ours", "bare"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.side:
        warnings.simplefilter("ignore")
        run = run_ours if args.side == "ours" else run_bare
        print(json.dumps(run(args.workloads[0], args.steps, args.seed)))
        return
    for workload in args.workloads:
        steps = args.steps or {"sac": 5_000, "ppo": 50_000}[workload]
        measured: dict[str, list[dict[str, float]]] = {"ours": [], "bare": []}
        for seed in range(args.rounds):
            for side, rounds in measured.items():
                command = [sys.executable, __file__, "--side", side, "--workloads", workload]
                command += ["--steps", str(steps), "--seed", str(seed)]
                env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
                rounds.append(json.loads(done.stdout.splitlines()[-1]))
        line: dict[str, Any] = {"benchmark": "control_training", "workload": workload, "steps": steps}
        for side, rounds in measured.items():
            times = {name: spread([r[name] for r in rounds]) for name in ("seconds", "cpu_seconds")}
            line[side] = {**times, "returns": [round(r["return"], 1) for r in rounds]}
        ratios = [o["cpu_seconds"] / b["cpu_seconds"] for o, b in zip(measured["ours"], measured["bare"], strict=True)]
        line["cpu_ours_over_bare"] = spread(ratios)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
