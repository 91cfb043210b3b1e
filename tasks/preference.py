"""kind: preference — direct optimisation on preference pairs, tested on held-out pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from learning.data.chat_settings import apply_chat
from learning.data.epochs import Epochs
from learning.data.rows_used import count_batched, write_rows_used
from learning.models.forwards import apply_compute_options, without_adapters
from learning.models.memory import keep_pages
from learning.models.optimize import make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import (
    Policy,
    add_adapters,
    load_policy,
    load_trained_policy,
    resolve_max_length,
    save_trained,
    set_determinism,
)
from learning.models.sharded_model import Trained, share_passes
from learning.parallel.group import ALONE, Each
from learning.parallel.random_states import seed_rank
from learning.preference.batches import count_tokens, read_pairs, split_by_prompt
from learning.preference.columns import PairSet, add_reference, list_bases, make_pair_set
from learning.preference.loss import (
    Term,
    add_gradient,
    bind_losses,
    collect_asked,
    compute_fixed_logprobs,
    compute_held_out_loss,
    compute_implicit_rewards,
    require_both_sides,
)
from learning.training.loop import BatchResult, Objective, TrainingLoop, count_steps
from schemas.errors import StepError
from schemas.stages.preference import Preference
from tasks.context import Context, Result
from tasks.dropped_rows import describe_cut, describe_dropped

PORTS = {"ref": "reference", "prev": "previous"}
"""Base of a log-ratio to the key of the stage that names its policy."""


@dataclass(frozen=True)
class Pairs:
    """Pairs to train on, held-out pairs, and how many pairs were too long: left out, or cut."""

    train: PairSet
    held_out: PairSet
    too_long: int
    cut: int


@dataclass
class PreferenceObjective(Objective):
    """The weighted sum of the stage's losses on a batch of pairs; `state` is what losses remember between steps."""

    terms: list[Term]
    pairs: Pairs
    epochs: Epochs
    model: Trained
    max_tokens: int

    def backward(self, step: int) -> BatchResult:
        """Add the gradient of one batch of pairs and return its metrics."""
        rows = self.epochs.at(step)[0]
        batch = [self.pairs.train.pairs[row] for row in rows]
        columns = {**self.pairs.train.select_columns(self.model, rows, self.max_tokens), "states": self.state}
        loss, lp_B2 = add_gradient(self.terms, self.model, batch, columns, step, self.max_tokens)
        metrics = {"loss": loss, **self.measure_pairs(lp_B2, columns, step)}
        return BatchResult(metrics, sum(pair.size for pair in batch))

    def evaluate(self, step: int) -> dict[str, float]:
        """Return loss, implicit rewards and log-probabilities of the held-out pairs; empty if there are none."""
        held_out, model = self.pairs.held_out, self.model
        if not held_out.pairs:
            return {}
        lp_B2 = compute_fixed_logprobs(model.model, held_out.pairs, self.max_tokens, model.each)
        columns = {**held_out.select_columns(model, range(len(held_out.pairs)), self.max_tokens), "states": self.state}
        metrics = {
            "loss": compute_held_out_loss(self.terms, lp_B2, columns, step),
            **self.measure_pairs(lp_B2, columns, step),
        }
        return {f"eval_{name}": value for name, value in metrics.items()}

    def measure_pairs(self, lp_B2: Tensor, columns: Mapping[str, Any], step: int) -> dict[str, float]:
        """Return mean implicit rewards and log-probabilities of pairs, named as in TRL.

        Of rows with one completion and a label, each mean is over those that have the side, and the accuracy is the
        share of completions whose reward has the sign of their label.
        """
        chosen_B, rejected_B = compute_implicit_rewards(self.terms, lp_B2, columns, step).double().T
        good_B, bad_B = (columns[f"{side}_present_B"] > 0 for side in ("chosen", "rejected"))
        sides = {
            "rewards/chosen": chosen_B[good_B],
            "rewards/rejected": rejected_B[bad_B],
            "logps/chosen": lp_B2[:, 0].cpu()[good_B],
            "logps/rejected": lp_B2[:, 1].cpu()[bad_B],
        }
        means = {name: float(value.mean()) for name, value in sides.items() if len(value)}
        if bool((good_B & bad_B).all()):
            right, margin = (chosen_B > rejected_B).double(), chosen_B - rejected_B
            return means | {"rewards/accuracies": float(right.mean()), "rewards/margins": float(margin.mean())}
        right = torch.cat([chosen_B[good_B] > 0, rejected_B[bad_B] < 0]).double()
        margins = {"rewards/chosen", "rewards/rejected"} <= means.keys()
        gap = {"rewards/margins": means["rewards/chosen"] - means["rewards/rejected"]} if margins else {}
        return means | {"rewards/accuracies": float(right.mean()), **gap}


def run(stage: Preference, context: Context) -> Result:
    """Train `stage.model` on the pairs of `stage.data`; continue from the step's own checkpoints."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    group = context.group or ALONE
    policy = load_trained_policy(context.input("model"), stage, device=context.device, dtype=stage.dtype, group=group)
    apply_chat(policy.tokenizer, stage)
    apply_compute_options(policy.model, stage)
    terms = bind_losses(stage, context.inputs)
    pairs = prepare_pairs(stage, context, policy, terms)
    sizes = count_tokens(pairs.train.pairs)
    per_pass, shuffle = stage.per_device_train_batch_size, stage.shuffle
    epochs = Epochs(sizes, per_pass=per_pass, passes=1, seed=context.seed, shuffle=shuffle)
    total_steps = count_steps(stage.max_steps, stage.num_train_epochs, epochs.steps_per_epoch)
    used = sorted({row for step in range(min(total_steps, epochs.steps_per_epoch)) for row in epochs.at(step)[0]})
    add_reference_columns = partial(add_references, stage, context, collect_asked(terms), pairs, used)
    if policy.unread is None:
        add_reference_columns(policy.model, group.each)
    policy = add_adapters(policy, stage)
    model = Trained(policy.model, group, policy.unread)
    if policy.unread is not None:
        with without_adapters(policy.model):
            add_reference_columns(policy.model, model.each)
    seed_rank(model.group, context.seed)
    loop = TrainingLoop(
        settings=stage,
        total_steps=total_steps,
        model=model,
        optimizer=make_optimizer(policy.model, stage),
        objective=PreferenceObjective(terms, pairs, epochs, model, stage.max_tokens_per_micro_batch),
        reporter=context,
        checkpoints=context.checkpoints,
        evaluation=stage,
    )
    loop.run()
    model.gather()
    return publish(stage, context, policy, pairs, epochs, loop) if model.group.main else Result()


def prepare_pairs(stage: Preference, context: Context, policy: Policy, terms: list[Term]) -> Pairs:
    """Encode and split the pairs; raise StepError if none fits or no prompt can be held out."""
    length = resolve_max_length(policy, stage.max_length)
    folder, truncate = context.checkpoints / "encoded", stage.long_rows == "truncate"
    read = read_pairs(policy.tokenizer, context.input("data"), length, folder, truncate=truncate, episodes=True)
    if not read.pairs:
        raise StepError(f"preference: none of {read.too_long} pairs fits into {length} tokens; raise max_length")
    require_both_sides(terms, read.pairs)
    names = collect_asked(terms)
    train, held_out = read.pairs, []
    if stage.validation is not None:
        folder, given = context.checkpoints / "encoded-validation", context.input("validation")
        held_out = read_pairs(policy.tokenizer, given, length, folder, truncate=truncate, episodes=True).pairs
        require_both_sides(terms, held_out)
    elif stage.validation_fraction:
        train, held_out = split_by_prompt(read.pairs, stage.validation_fraction)
    return Pairs(make_pair_set(train, names, length), make_pair_set(held_out, names, length), read.too_long, read.cut)


def add_references(
    stage: Preference, context: Context, names: set[str], pairs: Pairs, used: Sequence[int], start: Any, each: Each
) -> None:
    """Add the log-probabilities of the reference policies, for the pairs that will be used.

    `start` is the starting model, whose forward passes `each` shares among the ranks.
    """
    group = context.group or ALONE
    for base in list_bases(names):
        model, passes = start, each
        if getattr(stage, PORTS[base]) is not None:
            policy = load_policy(context.input(PORTS[base]), device=context.device, dtype=stage.dtype, group=group)
            model, passes = policy.model, share_passes(policy, group)
        for part, rows in ((pairs.train, used), (pairs.held_out, range(len(pairs.held_out.pairs)))):
            add_reference(part, base, model, rows, names, stage.max_tokens_per_micro_batch, passes)


def publish(
    stage: Preference, context: Context, policy: Policy, pairs: Pairs, epochs: Epochs, loop: TrainingLoop
) -> Result:
    """Write the trained model and the rows used, and return the metrics. Rank 0 alone calls it."""
    last = loop.published.metrics
    metrics = {
        "steps": loop.steps_taken,
        "pairs": len(pairs.train.pairs),
        "held_out": len(pairs.held_out.pairs),
        "dropped.too_long": pairs.too_long,
        "cut_rows": pairs.cut,
        "loss": last["loss"],
        "accuracy": last.get("eval_rewards/accuracies"),
        "margin": last.get("eval_rewards/margins"),
    }
    save_trained(policy, context.output("model"), stage)
    write_rows_used(
        context.folder, count_batched((pair.id for pair in pairs.train.pairs), epochs.uses(loop.steps_taken))
    )
    rows = len(pairs.train.pairs) + len(pairs.held_out.pairs) + pairs.too_long
    limit = resolve_max_length(policy, stage.max_length)
    notices = [*describe_dropped(pairs.too_long, rows, limit), *describe_cut(pairs.cut, rows, limit)]
    return Result(metrics | describe_forward(policy.model), notices=notices)
