"""kind: preference — direct optimisation on preference pairs, and how well the policy tells pairs it has not seen."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from learning.data.epochs import Epochs
from learning.data.rows_used import batched, write_used
from learning.models.checkpoint import load_training, save_training, trained_weights
from learning.models.forwards import economical
from learning.models.memory import keep_pages
from learning.models.optimize import clip_gradients, learning_rate_at, make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import Policy, load_policy, room, set_determinism
from learning.models.sharded_model import Trained
from learning.models.trained_policy import save_trained
from learning.parallel.group import ALONE
from learning.parallel.random_states import own_randomness
from learning.preference.batches import read_pairs, sizes_of, split_by_prompt
from learning.preference.columns import PairSet, add_reference, bases, pair_set
from learning.preference.loss import (
    Term,
    asked,
    bind_losses,
    fixed_logprobs,
    gradient,
    held_out_loss,
    implicit_rewards,
)
from schemas.errors import StepError
from schemas.stages.preference import Preference
from tasks.context import Context, Result

PORTS = {"ref": "reference", "prev": "previous"}
"""The stage's key for each policy that log-ratios are against."""
TOLD = ("curve", "window", "states")
"""What a loop remembers beside weights, optimiser and random states."""


@dataclass
class Loop:
    """What a stage holds while it runs; `curve` and `window` are what it has told, `states` what losses remember."""

    stage: Preference
    context: Context
    policy: Policy
    model: Trained
    terms: list[Term]
    train: PairSet
    held_out: PairSet
    order: Epochs
    optimizer: torch.optim.Optimizer
    too_long: int
    steps: int
    curve: list[dict[str, float]] = field(default_factory=list)
    window: list[dict[str, float]] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)


def run(stage: Preference, context: Context) -> Result:
    """Output `model`; continues from the step's own checkpoints to the same bits."""
    loop = prepare(stage, context)
    for step in range(resume(loop), loop.steps):
        learn(loop, step)
        if (step + 1) % stage.save_steps == 0 and step + 1 < loop.steps:
            save(loop, step + 1)
    return publish(loop)


def prepare(stage: Preference, context: Context) -> Loop:
    """Load the policy, encode and split the pairs, and ask the references about them once and for all."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    policy = load_policy(context.input("model"), device=context.device, dtype=stage.dtype)
    economical(policy.model, stage)
    terms = bind_losses(stage, context.inputs)
    train, held_out, too_long = sets_of_pairs(stage, context, policy, asked(terms))
    order = Epochs(sizes_of(train.pairs), per_pass=stage.per_device_train_batch_size, passes=1, seed=context.seed)
    steps = stage.max_steps if stage.max_steps >= 0 else math.ceil(stage.num_train_epochs * order.steps_per_epoch)
    used = sorted({i for step in range(min(steps, order.steps_per_epoch)) for i in order.at(step)[0]})
    ask_references(stage, context, policy, asked(terms), [(train, used), (held_out, range(len(held_out.pairs)))])
    if stage.use_peft:
        from learning.models.adapters import attach  # peft takes long to import, and few need it

        policy = replace(policy, model=attach(policy.model, stage))
    model = Trained(policy.model, context.group or ALONE)
    own_randomness(model.group, context.seed)
    optimizer = make_optimizer(policy.model, stage)
    return Loop(stage, context, policy, model, terms, train, held_out, order, optimizer, too_long, steps)


def sets_of_pairs(stage: Preference, context: Context, policy: Policy, names: set[str]) -> tuple[PairSet, PairSet, int]:
    """Pairs to train on, held-out pairs, and how many were too long. Raises StepError when there are too few."""
    length = room(policy, stage.max_length)
    pairs, too_long = read_pairs(policy.tokenizer, context.input("data"), length, context.checkpoints / "encoded")
    if not pairs:
        raise StepError(f"preference: none of {too_long} pairs fits into {length} tokens; raise max_length")
    train, held_out = split_by_prompt(pairs, stage.validation_fraction) if stage.validation_fraction else (pairs, [])
    return pair_set(train, names, length), pair_set(held_out, names, length), too_long


def ask_references(
    stage: Preference,
    context: Context,
    start: Policy,
    names: set[str],
    parts: Sequence[tuple[PairSet, Sequence[int]]],
) -> None:
    """Ask the policies that log-ratios are against about the pairs that are going to be used, one after the other."""
    for base in bases(names):
        model = start.model
        if getattr(stage, PORTS[base]) is not None:
            model = load_policy(context.input(PORTS[base]), device=context.device, dtype=stage.dtype).model
        for pairs, used in parts:
            each = (context.group or ALONE).each
            add_reference(pairs, base, model, used, names, stage.max_tokens_per_micro_batch, each)


def learn(loop: Loop, step: int) -> None:
    """One optimiser step on one batch of pairs."""
    stage, began = loop.stage, time.perf_counter()
    chosen = loop.order.at(step)[0]
    batch = [loop.train.pairs[i] for i in chosen]
    model, budget = loop.model, stage.max_tokens_per_micro_batch
    have = {**loop.train.have(model, chosen, budget), "states": loop.states}
    rate = learning_rate_at(stage, step, loop.steps)
    for group in loop.optimizer.param_groups:
        group["lr"] = rate
    loop.optimizer.zero_grad(set_to_none=True)
    loss, lp_B2 = gradient(loop.terms, model, batch, have, step, budget)
    norm = clip_gradients(model.model, stage.max_grad_norm)
    loop.optimizer.step()
    point = {"loss": loss, **told(loop, lp_B2, have, step), "grad_norm": norm, "learning_rate": rate}
    tokens = sum(pair.size for pair in batch)
    loop.context.spend(tokens)
    speed = tokens / (time.perf_counter() - began)
    remember(loop, step, point, speed)


def told(loop: Loop, lp_B2: Tensor, have: dict[str, Any], step: int) -> dict[str, float]:
    """Implicit rewards and log-probabilities of pairs, named as TRL names them."""
    chosen_B, rejected_B = implicit_rewards(loop.terms, lp_B2, have, step).double().T
    found = {
        "rewards/chosen": chosen_B,
        "rewards/rejected": rejected_B,
        "rewards/accuracies": (chosen_B > rejected_B).double(),
        "rewards/margins": chosen_B - rejected_B,
        "logps/chosen": lp_B2[:, 0],
        "logps/rejected": lp_B2[:, 1],
    }
    return {name: float(column_B.mean()) for name, column_B in found.items()}


def remember(loop: Loop, step: int, point: dict[str, float], speed: float) -> None:
    """Tell progress; add the mean of the last steps to the curves, and what the held-out pairs say where it is due."""
    stage, last = loop.stage, step + 1 == loop.steps
    loop.window.append(point)
    due = stage.eval_steps is not None and (step + 1) % stage.eval_steps == 0
    if (step + 1) % stage.logging_steps == 0 or last or due:
        means = {key: sum(p[key] for p in loop.window) / len(loop.window) for key in point}
        tested = {f"eval_{name}": value for name, value in examine(loop, step).items()} if due or last else {}
        loop.curve.append({"step": step + 1, **means, **tested})
        loop.window = []
        loop.context.log(**loop.curve[-1], tokens_per_second=speed)
    loop.context.progress(step + 1, loop.steps, loss=point["loss"], tokens_per_second=speed)


def examine(loop: Loop, step: int) -> dict[str, float]:
    """Loss, implicit rewards and log-probabilities of the held-out pairs; nothing where there are none."""
    pairs, budget = loop.held_out.pairs, loop.stage.max_tokens_per_micro_batch
    if not pairs:
        return {}
    model = loop.model
    lp_B2 = fixed_logprobs(model.model, pairs, budget, model.each)
    have = {**loop.held_out.have(model, range(len(pairs)), budget), "states": loop.states}
    return {"loss": held_out_loss(loop.terms, lp_B2, have, step), **told(loop, lp_B2, have, step)}


def save(loop: Loop, step: int) -> None:
    """Leave a checkpoint from which a killed step continues, to the same bits; the pairs' order follows the step."""
    kept = {name: getattr(loop, name) for name in TOLD}
    save_training(
        loop.context.checkpoints, step, trained_weights(loop.policy.model), loop.optimizer, kept, loop.model.group
    )


def resume(loop: Loop) -> int:
    """The step to start at: 0, or that of the latest checkpoint, with everything put back."""
    found = load_training(
        loop.context.checkpoints, trained_weights(loop.policy.model), loop.optimizer, loop.model.group
    )
    if found is None:
        return 0
    step, kept = found
    for name in TOLD:
        setattr(loop, name, kept[name])
    for point in loop.curve:
        loop.context.log(**point)
    return step


def publish(loop: Loop) -> Result:
    """Write the trained model; adapters with the base they belong to, so that their folder stands alone.

    Of a group rank 0 writes.
    """
    loop.model.gather()
    if not loop.model.group.main:
        return Result()
    folder = loop.context.output("model")
    last = loop.curve[-1]
    metrics = {
        "steps": loop.steps,
        "pairs": len(loop.train.pairs),
        "held_out": len(loop.held_out.pairs),
        "dropped.too_long": loop.too_long,
        "loss": last["loss"],
        "accuracy": last.get("eval_rewards/accuracies"),
        "margin": last.get("eval_rewards/margins"),
    }
    save_trained(loop.policy, folder, adapted=loop.stage.use_peft)
    write_used(loop.context.folder, batched((pair.id for pair in loop.train.pairs), loop.order.uses(loop.steps)))
    return Result(metrics | describe_forward(loop.policy.model))
