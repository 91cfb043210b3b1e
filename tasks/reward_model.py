"""kind: reward_model — a scalar head trained on preference pairs, tested on held-out prompts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from learning.data.chat_settings import apply_chat
from learning.data.epochs import Epochs
from learning.data.rows import count_missing, count_rows
from learning.data.rows_used import count_batched, write_rows_used
from learning.models.forwards import apply_compute_options, evaluation_mode
from learning.models.memory import keep_pages
from learning.models.optimize import make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import Policy, add_adapters, load_start_policy, quantise_policy, set_determinism
from learning.models.reward_model import RewardModel, Scale, make_reward_model
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE
from learning.parallel.random_states import seed_rank
from learning.preference.batches import Pair, count_tokens, group_by_tokens, read_pairs, split_by_prompt
from learning.preference.reward_modelling import (
    RewardQuality,
    compute_bradley_terry_loss,
    measure_quality,
    score_correct,
)
from learning.training.loop import BatchResult, Objective, TrainingLoop, count_steps
from schemas.errors import StepError
from schemas.stages.reward_model import RewardModel as Stage
from tasks.context import Context, Result
from tasks.dropped_rows import describe_dropped

TOKENS = 16_384
"""Tokens per forward pass; a step with more accumulates gradients."""


@dataclass(frozen=True)
class Pairs:
    """Pairs to train on, held-out pairs, and how many pairs were too long."""

    train: Sequence[Pair]
    held_out: Sequence[Pair]
    too_long: int


@dataclass
class PairwiseObjective(Objective):
    """Bradley-Terry loss of a batch of pairs, and the share of them that the model ranks correctly."""

    stage: Stage
    judge: RewardModel
    pairs: Pairs
    epochs: Epochs
    model: Trained

    def backward(self, step: int) -> BatchResult:
        """Add the gradient of one batch of pairs and return its loss and accuracy."""
        batch = [self.pairs.train[row] for row in self.epochs.at(step)[0]]
        group, sizes = self.model.group, [pair.size for pair in batch]
        passes = group_by_tokens(batch, group.fair(TOKENS, sum(sizes), max(sizes)))
        shares = self.model.backward(passes, lambda pairs: self.compute_share(pairs, len(batch)))
        loss, accuracy = group.add_up([sum(column) for column in zip(*shares, strict=True)] or [0.0, 0.0])
        return BatchResult({"loss": loss, "accuracy": accuracy}, sum(sizes))

    def evaluate(self, step: int) -> dict[str, float]:
        """Return loss and accuracy on the held-out pairs, if they are measured during training."""
        if self.stage.eval_steps is None:
            return {}
        passes, count = group_by_tokens(self.pairs.held_out, TOKENS), len(self.pairs.held_out)
        with evaluation_mode(self.model.model):
            shares = self.model.each(passes, lambda pairs: self.compute_share(pairs, count)[1])
        loss, accuracy = (sum(column) for column in zip(*shares, strict=True))
        return {"eval_loss": loss, "eval_accuracy": accuracy}

    def compute_share(self, pairs: list[Pair], count: int) -> tuple[torch.Tensor, tuple[float, float]]:
        """Return what a forward pass adds to the means over `count` pairs: loss, and loss and accuracy as numbers."""
        chosen_P, rejected_P = compute_rewards(self.judge, pairs).float().T
        margin_P = torch.tensor([p.margin for p in pairs], device=chosen_P.device) if self.stage.margin else None
        loss_P = compute_bradley_terry_loss(chosen_P, rejected_P, margin_P, self.stage.center_rewards_coefficient)
        accuracy = float(score_correct((chosen_P - rejected_P).detach().cpu().numpy()).sum()) / count
        return loss_P.sum() / count, (float(loss_P.detach().sum()) / count, accuracy)


def run(stage: Stage, context: Context) -> Result:
    """Train a reward model on `stage.data` and test it; continue from the step's own checkpoints."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    group = context.group or ALONE
    policy = load_start_policy(context.input("model"), stage, device=context.device, dtype=stage.dtype, group=group)
    apply_chat(policy.tokenizer, stage)
    judge = make_reward_model(policy, stage.max_length)
    judge.policy = quantise_policy(judge.policy, stage, context.device)
    pairs = prepare_pairs(stage, context, judge.policy)
    sizes = count_tokens(pairs.train)
    epochs = Epochs(sizes, per_pass=stage.per_device_train_batch_size, passes=1, seed=context.seed)
    apply_compute_options(judge.policy.model, stage)
    judge.policy = add_adapters(judge.policy, stage)
    model = Trained(judge.policy.model, group, judge.policy.unread)
    seed_rank(model.group, context.seed)
    loop = TrainingLoop(
        settings=stage,
        total_steps=count_steps(stage.max_steps, stage.num_train_epochs, epochs.steps_per_epoch),
        model=model,
        optimizer=make_optimizer(judge.policy.model, stage),
        objective=PairwiseObjective(stage, judge, pairs, epochs, model),
        reporter=context,
        checkpoints=context.checkpoints,
        evaluation=stage,
    )
    loop.run()
    passes = group_by_tokens(pairs.held_out, TOKENS)
    with evaluation_mode(model.model):
        held_out_rewards = model.each(passes, lambda batch: compute_rewards(judge, batch).cpu().double())
    model.gather()
    if not model.group.main:
        return Result()
    return publish(stage, context, judge, pairs, epochs, loop, torch.cat(held_out_rewards).numpy())


def prepare_pairs(stage: Stage, context: Context, policy: Policy) -> Pairs:
    """Encode the pairs and split them by prompt; raise StepError if margins are needed and missing."""
    data = context.input("data")
    if stage.margin and (without := count_missing(data, "preference_pairs", "margin")):
        count = count_rows(data, "preference_pairs")
        raise StepError(f"reward_model: margin is on, but {without} of {count} pairs have no margin")
    read = read_pairs(policy.tokenizer, data, policy.max_length, context.checkpoints / "encoded")
    require_pairs(read.pairs)
    if stage.validation is None:
        return Pairs(*split_by_prompt(read.pairs, stage.validation_fraction), read.too_long)
    folder = context.checkpoints / "encoded-validation"
    given = read_pairs(policy.tokenizer, context.input("validation"), policy.max_length, folder)
    require_pairs(given.pairs)
    if not given.pairs:
        raise StepError(f"reward_model: none of {given.too_long} pairs of `validation` fits; raise max_length")
    return Pairs(read.pairs, given.pairs, read.too_long)


def require_pairs(pairs: Sequence[Pair]) -> None:
    """Raise StepError if rows have one completion with a label."""
    if single := sum(not pair.chosen or not pair.rejected for pair in pairs):
        raise StepError(f"reward_model: {single} of {len(pairs)} rows have one completion with a label; it needs pairs")


def compute_rewards(judge: RewardModel, pairs: list[Pair]) -> torch.Tensor:
    """Return the rewards (P, 2) of the chosen and the rejected completions."""
    return judge.rewards([p.prompt for p in pairs], [[p.chosen, p.rejected] for p in pairs]).view(-1, 2)


def publish(
    stage: Stage,
    context: Context,
    judge: RewardModel,
    pairs: Pairs,
    epochs: Epochs,
    loop: TrainingLoop,
    rewards_P2: np.ndarray,
) -> Result:
    """Write the model, the report on the held-out pairs and the rows used. Rank 0 alone calls it."""
    tokens_P2 = np.array([[len(p.chosen), len(p.rejected)] for p in pairs.held_out])
    quality = measure_quality(rewards_P2, tokens_P2, seed=context.seed)
    judge.scale = Scale(quality["rewards"]["mean"], quality["rewards"]["std"])
    judge.save(context.output("model"), stage)
    write_report(context, pairs.held_out, quality, rewards_P2)
    write_rows_used(context.folder, count_batched((pair.id for pair in pairs.train), epochs.uses(loop.steps_taken)))
    metrics = {
        "steps": loop.steps_taken,
        "pairs": len(pairs.train),
        "held_out": len(pairs.held_out),
        "dropped.too_long": pairs.too_long,
        "loss": loop.published.metrics["loss"],
        "accuracy": quality["accuracy"]["value"],
        "length_correlation": quality["length_bias"]["correlation"],
        "expected_calibration_error": quality["calibration"]["expected_calibration_error"],
    }
    rows = len(pairs.train) + len(pairs.held_out) + pairs.too_long
    notices = describe_dropped(pairs.too_long, rows, judge.policy.max_length)
    return Result(metrics | describe_forward(judge.policy.model), quality, notices)


def write_report(context: Context, held_out: Sequence[Pair], quality: RewardQuality, rewards_P2: np.ndarray) -> None:
    """Write report.json (the quality) and held_out.jsonl (both rewards of every held-out pair)."""
    folder = context.output("report")
    (folder / "report.json").write_text(json.dumps(quality, indent=1) + "\n")
    pairs = zip(held_out, rewards_P2.tolist(), strict=True)
    lines = [json.dumps({"id": pair.id, "chosen": c, "rejected": r}) + "\n" for pair, (c, r) in pairs]
    (folder / "held_out.jsonl").write_text("".join(lines))
