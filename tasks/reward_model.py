"""kind: reward_model — a scalar head trained on preferences, and how good it is on prompts it has not seen."""

import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from learning.data.epochs import Epochs
from learning.data.rows import count_rows, without_value
from learning.data.rows_used import batched, write_used
from learning.models.checkpoint import load_training, save_training
from learning.models.forwards import economical
from learning.models.memory import keep_pages
from learning.models.optimize import clip_gradients, learning_rate_at, make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import load_policy, set_determinism
from learning.models.reward_model import RewardModel, Scale, make_reward_model
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE, Group
from learning.parallel.random_states import own_randomness
from learning.preference.batches import Pair, by_tokens, read_pairs, sizes_of, split_by_prompt
from learning.preference.reward_modelling import bradley_terry_loss, correct, held_out_quality
from schemas.errors import StepError
from schemas.stages.reward_model import RewardModel as Stage
from tasks.context import Context, Result

TOKENS = 16_384
"""Tokens per forward; a step with more accumulates gradients."""
TOLD = ("curve", "window")
"""What a loop remembers beside weights, optimiser and random states."""


@dataclass
class Loop:
    """What a stage holds while it runs; `curve` is what it has told so far, `window` what it will tell next."""

    stage: Stage
    context: Context
    judge: RewardModel
    model: Trained
    optimizer: torch.optim.Optimizer
    train: list[Pair]
    held_out: list[Pair]
    order: Epochs
    too_long: int
    steps: int
    curve: list[dict[str, float]] = field(default_factory=list)
    window: list[dict[str, float]] = field(default_factory=list)


def run(stage: Stage, context: Context) -> Result:
    """Outputs `model` and `report`; continues from the step's own checkpoints to the same bits."""
    loop = prepare(stage, context)
    for step in range(resume(loop), loop.steps):
        learn(loop, step)
        if (step + 1) % stage.save_steps == 0 and step + 1 < loop.steps:
            save(loop, step + 1)
    return publish(loop)


def prepare(stage: Stage, context: Context) -> Loop:
    """Load the body, encode and split the pairs."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    policy = load_policy(context.input("model"), device=context.device, dtype=stage.dtype)
    judge = make_reward_model(policy, stage.max_length)
    data = context.input("data")
    if stage.margin and (without := without_value(data, "preference_pairs", "margin")):
        count = count_rows(data, "preference_pairs")
        raise StepError(f"reward_model: margin is on, but {without} of {count} pairs have no margin")
    pairs, too_long = read_pairs(policy.tokenizer, data, judge.policy.max_length, context.checkpoints / "encoded")
    train, held_out = split_by_prompt(pairs, stage.validation_fraction)
    order = Epochs(sizes_of(train), per_pass=stage.per_device_train_batch_size, passes=1, seed=context.seed)
    steps = stage.max_steps if stage.max_steps >= 0 else math.ceil(stage.num_train_epochs * order.steps_per_epoch)
    economical(judge.policy.model, stage)
    model = Trained(judge.policy.model, context.group or ALONE)
    own_randomness(model.group, context.seed)
    optimizer = make_optimizer(judge.policy.model, stage)
    return Loop(stage, context, judge, model, optimizer, train, held_out, order, too_long, steps)


def learn(loop: Loop, step: int) -> None:
    """One optimiser step on one batch of pairs."""
    stage, began = loop.stage, time.perf_counter()
    batch = [loop.train[i] for i in loop.order.at(step)[0]]
    for group in loop.optimizer.param_groups:
        group["lr"] = learning_rate_at(stage, step, loop.steps)
    loop.optimizer.zero_grad(set_to_none=True)
    group = loop.model.group
    told = loop.model.backward(shared(batch, group), lambda micro: mean_loss(loop, micro, len(batch)))
    loss, right = group.add_up([sum(column) for column in zip(*told, strict=True)] or [0.0, 0.0])
    norm = clip_gradients(loop.judge.policy.model, stage.max_grad_norm)
    loop.optimizer.step()
    tokens = sum(pair.size for pair in batch)
    loop.context.spend(tokens)
    speed = tokens / (time.perf_counter() - began)
    point = {"loss": loss, "accuracy": right, "grad_norm": norm, "learning_rate": loop.optimizer.param_groups[0]["lr"]}
    remember(loop, step, point, speed)


def shared(batch: list[Pair], group: Group) -> list[list[Pair]]:
    """The pairs of a step in forward passes that leave no rank idle."""
    sizes = [pair.size for pair in batch]
    return by_tokens(batch, group.fair(TOKENS, sum(sizes), max(sizes)))


def mean_loss(loop: Loop, micro: list[Pair], count: int) -> tuple[torch.Tensor, tuple[float, float]]:
    """A forward pass's share of the mean over `count` pairs: of the loss, as a value too, and of the accuracy."""
    stage = loop.stage
    chosen_P, rejected_P = rewards_of(loop.judge, micro).float().T
    margin_P = torch.tensor([p.margin for p in micro], device=chosen_P.device) if stage.margin else None
    loss_P = bradley_terry_loss(chosen_P, rejected_P, margin_P, stage.center_rewards_coefficient)
    right = float(correct((chosen_P - rejected_P).detach().cpu().numpy()).sum()) / count
    return loss_P.sum() / count, (float(loss_P.detach().sum()) / count, right)


def rewards_of(judge: RewardModel, pairs: list[Pair]) -> torch.Tensor:
    """Rewards (P, 2) of the chosen and the rejected completions."""
    return judge.rewards([p.prompt for p in pairs], [[p.chosen, p.rejected] for p in pairs]).view(-1, 2)


def remember(loop: Loop, step: int, point: dict[str, float], speed: float) -> None:
    """Tell progress; add the mean of the last steps to the curves."""
    loop.window.append(point)
    if (step + 1) % loop.stage.logging_steps == 0 or step + 1 == loop.steps:
        means = {key: sum(p[key] for p in loop.window) / len(loop.window) for key in point}
        loop.curve.append({"step": step + 1, **means})
        loop.window = []
        loop.context.log(**loop.curve[-1], tokens_per_second=speed)
    loop.context.progress(step + 1, loop.steps, loss=point["loss"], tokens_per_second=speed)


def save(loop: Loop, step: int) -> None:
    """Leave a checkpoint: weights, optimiser and what was told; the order of the data follows from the step."""
    told = {name: getattr(loop, name) for name in TOLD}
    save_training(loop.context.checkpoints, step, weights(loop), loop.optimizer, told, loop.model.group)


def resume(loop: Loop) -> int:
    """The step to start at: 0, or that of the latest checkpoint, with everything put back."""
    found = load_training(loop.context.checkpoints, weights(loop), loop.optimizer, loop.model.group)
    if found is None:
        return 0
    step, told = found
    for name in TOLD:
        setattr(loop, name, told[name])
    for point in loop.curve:
        loop.context.log(**point)
    return step


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    """Everything that is trained, by name."""
    return dict(loop.judge.policy.model.named_parameters())


def publish(loop: Loop) -> Result:
    """Test on the held-out pairs; write the model and the report. Of a group rank 0 writes."""
    parts = by_tokens(loop.held_out, TOKENS)
    scored = loop.model.each(parts, lambda micro: rewards_of(loop.judge, micro).cpu().double())
    loop.model.gather()
    if not loop.model.group.main:
        return Result()
    rewards_P2 = torch.cat(scored).numpy()
    tokens_P2 = np.array([[len(p.chosen), len(p.rejected)] for p in loop.held_out])
    quality = held_out_quality(rewards_P2, tokens_P2, seed=loop.context.seed)
    loop.judge.scale = Scale(quality["rewards"]["mean"], quality["rewards"]["std"])
    loop.judge.save(loop.context.output("model"))
    write_report(loop, quality, rewards_P2)
    write_used(loop.context.folder, batched((pair.id for pair in loop.train), loop.order.uses(loop.steps)))
    return Result(
        {
            "steps": loop.steps,
            "pairs": len(loop.train),
            "held_out": len(loop.held_out),
            "dropped.too_long": loop.too_long,
            "loss": loop.curve[-1]["loss"] if loop.curve else None,
            "accuracy": quality["accuracy"]["value"],
            "length_correlation": quality["length_bias"]["correlation"],
            "expected_calibration_error": quality["calibration"]["expected_calibration_error"],
            **describe_forward(loop.judge.policy.model),
        },
        quality,
    )


def write_report(loop: Loop, quality: dict[str, Any], rewards_P2: np.ndarray) -> None:
    """report.json: quality; held_out.jsonl: both rewards of every held-out pair."""
    folder = loop.context.output("report")
    (folder / "report.json").write_text(json.dumps(quality, indent=1) + "\n")
    pairs = zip(loop.held_out, rewards_P2.tolist(), strict=True)
    lines = [json.dumps({"id": pair.id, "chosen": c, "rejected": r}) + "\n" for pair, (c, r) in pairs]
    (folder / "held_out.jsonl").write_text("".join(lines))
