"""kind: rl — sample groups of completions, score them, follow the policy gradient.

Everything that varies between algorithms is a function bound in `learning.algorithm`; this file is the loop.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from learning.algorithm import Algorithm, bind_algorithm
from learning.batch import Batch
from learning.chat import decode, encode_prompt
from learning.checkpoint import (
    load_latest,
    load_optimizer_state,
    optimizer_state,
    rng_state,
    save_checkpoint,
    set_rng_state,
)
from learning.engines.load import make_engine
from learning.engines.protocol import EngineProtocol, Sampling
from learning.lookup import Bound, bind
from learning.optimize import learning_rate_at, make_optimizer
from learning.policy import Policy, load_policy, save_policy, set_determinism
from learning.policy_loss import with_advantages, with_dropped
from learning.rollout import gate, prompts_of_step, raw_scores, sample, score
from learning.rows import read_rows
from learning.trajectories import Trajectories
from learning.update import update, with_reference
from schemas.errors import StepError
from schemas.stages.rl import Rl
from tasks.context import Context, Result

TOLD = ("curve", "window", "samples", "parts")
"""What a loop remembers beside weights, optimiser and random states."""


@dataclass
class Loop:
    """What a stage holds while it runs; `curve` and `samples` are what it has told so far."""

    stage: Rl
    context: Context
    policy: Policy
    reference: Policy | None
    engine: EngineProtocol
    algorithm: Algorithm
    rewards: list[Bound]
    optimizer: torch.optim.Optimizer
    rows: list[dict[str, Any]]
    prompts: list[list[int]]
    trajectories: Trajectories
    curve: list[dict[str, float]] = field(default_factory=list)
    window: list[dict[str, float]] = field(default_factory=list)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    parts: list[int] = field(default_factory=list)


def run(stage: Rl, context: Context) -> Result:
    """Train `stage.model` on `stage.prompts`; continues from the step's own checkpoints."""
    loop = prepare(stage, context)
    for step in range(resume(loop), stage.max_steps):
        iterate(loop, step)
        if (step + 1) % stage.save_steps == 0 and step + 1 < stage.max_steps:
            save(loop, step + 1)
    return publish(loop)


def prepare(stage: Rl, context: Context) -> Loop:
    """Load the policy, its engine, the prompts and the functions that the recipe names."""
    set_determinism(context.seed, context.num_threads)
    how = {"device": context.device, "dtype": stage.dtype}
    policy = load_policy(context.input("model"), **how)
    algorithm = bind_algorithm(stage, context.inputs)
    reference = None
    if algorithm.needs("lp_ref_T"):
        reference = load_policy(context.input("reference" if stage.reference else "model"), **how)
    rows = read_rows(context.input("prompts"), "prompts")
    return Loop(
        stage,
        context,
        policy,
        reference,
        make_engine(stage.engine, policy),
        algorithm,
        [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)],
        make_optimizer(policy.model, stage),
        rows,
        encode(rows, policy, stage),
        Trajectories(context.checkpoints / "trajectories", stage.log_trajectories, context.seed),
    )


def encode(rows: list[dict[str, Any]], policy: Policy, stage: Rl) -> list[list[int]]:
    """Token ids of every prompt; raises StepError when there is none or one leaves no room for a completion."""
    if not rows:
        raise StepError("prompts: no rows to sample completions for; look at what the stage before it dropped")
    prompts = [encode_prompt(policy.tokenizer, row["prompt"]) for row in rows]
    longest = max(map(len, prompts))
    if longest + stage.max_completion_length > policy.max_length:
        raise StepError(
            f"prompts: the longest has {longest} tokens and max_completion_length is {stage.max_completion_length}, "
            f"but the model holds {policy.max_length}; drop long prompts in a curate stage or lower that length"
        )
    return prompts


def iterate(loop: Loop, step: int) -> None:
    """One iteration: sample, score, gate, update, and tell the engine."""
    stage, began = loop.stage, time.perf_counter()
    batch, rows, texts = rollout(loop, step)
    sampled_at = time.perf_counter()
    trained = with_dropped(gate(loop.algorithm, batch, step), stage.mask_truncated_completions)
    trained = with_advantages(loop.algorithm, trained, step)
    points = learn(loop, trained, step) if trained.num_paths else {}
    loop.engine.sync(step + 1)
    loop.trajectories.add(step, batch, trained, rows, texts)
    tokens = len(batch.sampled_T)
    points |= describe(batch, trained) | {
        "tokens_per_second": tokens / (time.perf_counter() - began),
        "generation_seconds": sampled_at - began,
        "learning_rate": loop.optimizer.param_groups[0]["lr"],
    }
    remember(loop, step, points, rows, texts, batch)


def rollout(loop: Loop, step: int) -> tuple[Batch, list[dict[str, Any]], list[str]]:
    """Completions of the step's prompts with their scores; row and text of every path."""
    stage, n = loop.stage, loop.stage.num_generations
    chosen = prompts_of_step(len(loop.rows), stage.generation_batch_size // n, loop.context.seed, step)
    sampling = Sampling(stage.temperature, stage.max_completion_length)
    prompts = [loop.prompts[i] for i in chosen]
    batch = sample(loop.engine, prompts, n=n, seed=loop.context.seed, step=step, sampling=sampling)
    rows = [loop.rows[chosen[group]] for group in batch.paths["group"].tolist()]
    texts = [decode(loop.policy.tokenizer, batch.segments[leaf]) for leaf in batch.leaves]
    weights = [use.weight for use in stage.rewards]
    return score(loop.rewards, weights, batch, rows, texts, step), rows, texts


def learn(loop: Loop, trained: Batch, step: int) -> dict[str, float]:
    """Update the policy on the kept paths."""
    stage = loop.stage
    if loop.reference is not None:
        trained = with_reference(
            trained,
            loop.reference.model,
            max_tokens=stage.max_tokens_per_micro_batch,
            temperature=stage.temperature,
        )
    for group in loop.optimizer.param_groups:
        group["lr"] = learning_rate_at(stage, step, stage.max_steps)
    return update(loop.algorithm, loop.policy.model, loop.optimizer, trained, stage, step)


def describe(batch: Batch, trained: Batch) -> dict[str, float]:
    """Points for the curves that say what was sampled."""
    scorable_P = batch.paths["scorable"]
    points = {f"reward/{name}": float(v.nanmean()) for name, v in raw_scores(batch).items() if not v.isnan().all()}
    if scorable_P.any():
        points["reward"] = float(batch.paths["reward"][scorable_P].mean())
    return points | {
        "completion_length": len(batch.sampled_T) / batch.num_paths,
        "truncated": float(batch.paths["truncated"].double().mean()),
        "unscorable": float((~scorable_P).double().mean()),
        "trained": trained.num_paths / batch.num_paths,
        "broken_logprobs": float(batch.tokens["broken"].sum()),
    }


def remember(
    loop: Loop, step: int, points: dict[str, float], rows: list[dict[str, Any]], texts: list[str], batch: Batch
) -> None:
    """Tell progress, add to the curves, keep samples of the first and the last step."""
    stage, loop.window = loop.stage, [*loop.window, points]
    if step == 0 or step + 1 == stage.max_steps:
        shown = [batch.paths["group"].tolist().index(g) for g in batch.paths["group"].unique().tolist()[:4]]
        loop.samples["first" if step == 0 else "last"] = [
            {"prompt": rows[p]["prompt"], "completion": texts[p], "reward": reward_of(batch, p)} for p in shown
        ]
    if (step + 1) % stage.logging_steps == 0 or step + 1 == stage.max_steps:
        keys = sorted({key for point in loop.window for key in point})
        seen = {key: [point[key] for point in loop.window if key in point] for key in keys}
        loop.curve.append({"step": step + 1, **{key: sum(v) / len(v) for key, v in seen.items()}})
        loop.window = []
        loop.context.log(**loop.curve[-1])
    told = {key: points[key] for key in ("reward", "tokens_per_second") if key in points}
    loop.context.progress(step + 1, stage.max_steps, **told)


def reward_of(batch: Batch, path: int) -> float | None:
    """Reward of a path, None where it could not be scored."""
    return float(batch.paths["reward"][path]) if batch.paths["scorable"][path] else None


def save(loop: Loop, step: int) -> None:
    """Leave a checkpoint from which a killed step continues, to the same bits."""
    loop.trajectories.put_aside(step)
    loop.parts.append(step)
    optimizer_tensors, optimizer_rest = optimizer_state(loop.optimizer)
    rng_tensors, rng_rest = rng_state()
    told = {name: getattr(loop, name) for name in TOLD}
    save_checkpoint(
        loop.context.checkpoints,
        step,
        prefixed(model=weights(loop), optimizer=optimizer_tensors, rng=rng_tensors),
        {"optimizer": optimizer_rest, "rng": rng_rest, **told},
    )


def resume(loop: Loop) -> int:
    """The iteration to start at: 0, or that of the latest checkpoint, with everything put back."""
    found = load_latest(loop.context.checkpoints)
    if found is None:
        return 0
    step, tensors, state = found
    with torch.no_grad():
        for name, parameter in weights(loop).items():
            parameter.copy_(tensors[f"model/{name}"])
    load_optimizer_state(loop.optimizer, part(tensors, "optimizer"), state["optimizer"])
    set_rng_state(part(tensors, "rng"), state["rng"])
    for name in TOLD:
        setattr(loop, name, state[name])
    for point in loop.curve:
        loop.context.log(**point)
    loop.engine.sync(step)
    return step


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    """Parameters and buffers that a checkpoint holds; tied ones once."""
    return dict(loop.policy.model.named_parameters())


def prefixed(**groups: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Several dictionaries of tensors as one."""
    return {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}


def part(tensors: dict[str, torch.Tensor], group: str) -> dict[str, torch.Tensor]:
    """One of the dictionaries that `prefixed` joined."""
    return {name.removeprefix(f"{group}/"): t for name, t in tensors.items() if name.startswith(f"{group}/")}


def publish(loop: Loop) -> Result:
    """Write the trained policy and the trajectories."""
    save_policy(loop.policy, loop.context.output("model"))
    loop.trajectories.publish(loop.context.output("trajectories"), loop.parts)
    timed = ("step", "tokens_per_second", "generation_seconds")
    final = {key: value for key, value in loop.curve[-1].items() if key not in timed}
    return Result({"steps": loop.stage.max_steps, **final}, {"samples": loop.samples})
