"""kind: process_reward_model — a scalar head trained on labels of steps, tested on held-out prompts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from learning.auxiliary_networks.heads import save_network
from learning.auxiliary_networks.network import Valued
from learning.auxiliary_networks.step_labels import (
    LabelledSteps,
    compute_step_logits,
    compute_step_losses,
    read_solutions,
    select_labels,
)
from learning.data.chat_settings import apply_chat
from learning.data.epochs import Epochs
from learning.data.held_out import hash_prompt, split_rows
from learning.data.rows_used import count_batched, write_rows_used
from learning.evaluation.step_quality import StepQuality, measure_step_quality
from learning.models.forwards import apply_compute_options, evaluation_mode
from learning.models.memory import keep_pages
from learning.models.optimize import make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import Policy, load_policy, resolve_max_length, set_determinism
from learning.models.sharded_model import Trained
from learning.preference.batches import count_tokens, group_by_tokens
from learning.training.loop import BatchResult, Objective, TrainingLoop, count_steps
from schemas.errors import StepError
from schemas.stages.process_reward_model import ProcessRewardModel as Stage
from tasks.context import Context, Result

TOKENS = 16_384
"""Tokens per forward pass; a step with more accumulates gradients."""


@dataclass(frozen=True)
class Solutions:
    """Solutions to train on, held-out ones, and how many had no step within the limit of tokens."""

    train: Sequence[LabelledSteps]
    held_out: Sequence[LabelledSteps]
    too_long: int


@dataclass
class StepObjective(Objective):
    """Mean cross-entropy of the learned steps of a batch, and the share of them on the right side of 0.5."""

    stage: Stage
    network: Valued
    solutions: Solutions
    epochs: Epochs
    model: Trained

    def backward(self, step: int) -> BatchResult:
        """Add the gradient of one batch of solutions and return its loss and accuracy."""
        batch = [self.solutions.train[row] for row in self.epochs.at(step)[0]]
        last = self.stage.train_on_last_step_only
        count = int(select_labels(batch, last_only=last)[1].sum())
        passes = group_by_tokens(batch, TOKENS)
        shares = self.model.backward(passes, lambda some: self.compute_share(some, count, last_only=last))
        loss, accuracy = (sum(column) for column in zip(*shares, strict=True))
        return BatchResult({"loss": loss, "accuracy": accuracy}, sum(one.size for one in batch))

    def evaluate(self, step: int) -> dict[str, float]:
        """Return loss and accuracy on all steps of held-out solutions, if they are measured during training."""
        if self.stage.eval_steps is None:
            return {}
        count = sum(len(one.labels) for one in self.solutions.held_out)
        passes = group_by_tokens(self.solutions.held_out, TOKENS)
        with evaluation_mode(self.model.model):
            shares = self.model.each(passes, lambda some: self.compute_share(some, count, last_only=False)[1])
        loss, accuracy = (sum(column) for column in zip(*shares, strict=True))
        return {"eval_loss": loss, "eval_accuracy": accuracy}

    def compute_share(
        self, solutions: list[LabelledSteps], count: int, *, last_only: bool
    ) -> tuple[torch.Tensor, tuple[float, float]]:
        """Return what a forward pass adds to the means over `count` steps: loss, and loss and accuracy as numbers."""
        logit_S = compute_step_logits(self.network, solutions)
        label_S, learned_S = (column.to(logit_S.device) for column in select_labels(solutions, last_only=last_only))
        loss = compute_step_losses(logit_S, label_S)[learned_S].sum() / count
        right_S = ((logit_S.detach() >= 0) == (label_S >= 0.5))[learned_S]
        return loss, (float(loss.detach()), float(right_S.sum()) / count)


def run(stage: Stage, context: Context) -> Result:
    """Train a process reward model on `stage.data` and test it; continue from the step's own checkpoints."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    policy = load_policy(context.input("model"), device=context.device, dtype=stage.dtype)
    apply_chat(policy.tokenizer, stage)
    policy.max_length = resolve_max_length(policy, stage.max_length)
    solutions = prepare_solutions(stage, context, policy)
    epochs = Epochs(
        count_tokens(solutions.train), per_pass=stage.per_device_train_batch_size, passes=1, seed=context.seed
    )
    apply_compute_options(policy.model, stage)
    body: Any = policy.model.base_model
    network = Valued(body, "token", 1, context.seed, "process_reward_model")
    model = Trained(network)
    loop = TrainingLoop(
        settings=stage,
        total_steps=count_steps(stage.max_steps, stage.num_train_epochs, epochs.steps_per_epoch),
        model=model,
        optimizer=make_optimizer(network, stage),
        objective=StepObjective(stage, network, solutions, epochs, model),
        reporter=context,
        checkpoints=context.checkpoints,
        evaluation=stage,
    )
    loop.run()
    passes = group_by_tokens(solutions.held_out, TOKENS)
    with evaluation_mode(network):
        logits = model.each(passes, lambda some: compute_step_logits(network, some).cpu().double())
    return publish(stage, context, policy, network, solutions, epochs, loop, torch.cat(logits).sigmoid().numpy())


def prepare_solutions(stage: Stage, context: Context, policy: Policy) -> Solutions:
    """Encode the solutions and split them by prompt; raise StepError if none is left to learn."""

    def read(port: str) -> tuple[Sequence[LabelledSteps], int]:
        folder = context.checkpoints / f"encoded-{port}"
        how = (policy.max_length, stage.step_separator, folder, stage.prompt_label)
        made = read_solutions(policy.tokenizer, context.input(port), *how)
        if not made.solutions:
            raise StepError(
                f"process_reward_model: none of {made.too_long} rows of `{port}` has a step that ends within "
                f"{policy.max_length} tokens; raise max_length"
            )
        return made.solutions, made.too_long

    train, too_long = read("data")
    if stage.validation is None:
        train, held_out = split_rows(train, (hash_prompt(one.prompt) for one in train), stage.validation_fraction)
    else:
        held_out, _ = read("validation")
    if stage.train_on_last_step_only:
        whole = [i for i, one in enumerate(train) if len(one.ends) == one.steps]
        if not whole:
            raise StepError("process_reward_model: no solution has its last step within max_length; raise it")
        too_long += len(train) - len(whole)
        train = [train[i] for i in whole]
    return Solutions(train, held_out, too_long)


def publish(
    stage: Stage,
    context: Context,
    policy: Policy,
    network: Valued,
    solutions: Solutions,
    epochs: Epochs,
    loop: TrainingLoop,
    probability_S: np.ndarray,
) -> Result:
    """Write the model, the report on the held-out solutions and the rows used."""
    ends = np.cumsum([len(one.labels) for one in solutions.held_out])[:-1]
    probabilities = np.split(probability_S, ends)
    labels = [np.array(one.labels) for one in solutions.held_out]
    quality = measure_step_quality(probabilities, labels, seed=context.seed)
    save_network(network, policy, context.output("model"), link="logistic", separator=stage.step_separator)
    write_report(context, solutions.held_out, quality, probabilities)
    used = count_batched((one.id for one in solutions.train), epochs.uses(loop.steps_taken))
    write_rows_used(context.folder, used)
    every = [*solutions.train, *solutions.held_out]
    cut = sum(len(one.ends) < one.steps for one in every)
    metrics = {
        "steps": loop.steps_taken,
        "solutions": len(solutions.train),
        "held_out": len(solutions.held_out),
        "dropped.too_long": solutions.too_long,
        "cut_rows": cut,
        "loss": loop.published.metrics["loss"],
        "accuracy": quality["accuracy"]["value"],
        "first_error_accuracy": quality["first_error"]["value"],
    }
    notices = describe_lost(stage, every, cut, solutions.too_long, policy.max_length)
    return Result(metrics | describe_forward(network.body), quality, notices)


def describe_lost(stage: Stage, every: Sequence[LabelledSteps], cut: int, too_long: int, limit: int) -> list[str]:
    """Return notices on steps beyond the limit of tokens, and on steps that the separator would cut in two."""
    notices, count = [], len(every) + too_long
    if cut or too_long:
        notices.append(
            f"of {count} solutions {cut} lost steps beyond max_length ({limit} tokens), and {too_long} were left out"
        )
    if inner := sum(not one.separated for one in every):
        notices.append(
            f"{inner} of {count} solutions have {stage.step_separator!r} inside of a step: as a reward, the model "
            "reads such a step as several; choose another step_separator"
        )
    return notices


def write_report(
    context: Context, held_out: Sequence[LabelledSteps], quality: StepQuality, probabilities: Sequence[np.ndarray]
) -> None:
    """Write report.json (the quality) and held_out.jsonl (label and probability of each step)."""
    folder = context.output("report")
    (folder / "report.json").write_text(json.dumps(quality, indent=1) + "\n")
    lines = [
        json.dumps({"id": one.id, "labels": one.labels, "probabilities": p_S.tolist()}) + "\n"
        for one, p_S in zip(held_out, probabilities, strict=True)
    ]
    (folder / "held_out.jsonl").write_text("".join(lines))
