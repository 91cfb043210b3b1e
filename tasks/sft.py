"""kind: sft — supervised fine-tuning on completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from learning.data.chat_settings import apply_chat
from learning.data.epochs import Epochs
from learning.data.examples import Example, Examples, read_examples
from learning.data.held_out import split_rows
from learning.data.long_rows import describe_lengths, summarise_lengths
from learning.data.rows import list_sources
from learning.data.rows_used import sum_parts, write_rows_used
from learning.models.crossentropy import Loss, choose_loss
from learning.models.forwards import apply_compute_options, evaluation_mode
from learning.models.memory import keep_pages
from learning.models.optimize import make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import (
    Policy,
    add_adapters,
    load_trained_policy,
    resolve_max_length,
    save_trained,
    set_determinism,
)
from learning.models.sharded_model import Trained
from learning.parallel.group import ALONE
from learning.parallel.random_states import seed_rank
from learning.training.loop import BatchResult, Objective, TrainingLoop, count_steps
from schemas.stages.sft import Sft
from tasks.context import Context, Result
from tasks.dropped_rows import describe_cut, describe_dropped


@dataclass
class CompletionObjective(Objective):
    """Mean cross-entropy over the completion tokens of a step."""

    examples: Examples
    epochs: Epochs
    loss: Loss
    model: Trained
    held_out: Sequence[Example] = ()
    rows_per_pass: int = 1
    sources: Sequence[str] = ()
    """Sources of a mixture, each of which has a curve; empty for rows of one."""

    def backward(self, step: int) -> BatchResult:
        """Add the gradient of a step's forward passes and return the mean loss.

        The denominator is the number of learned tokens of the whole step, not of each pass.
        """
        passes = [[self.examples.kept[row] for row in rows] for rows in self.epochs.at(step)]
        learned = sum(example.num_learned for examples in passes for example in examples)

        def compute_share(examples: Sequence[Example]) -> tuple[torch.Tensor, list[float]]:
            rows: list[float] = []
            loss = self.loss(self.model.model, examples, rows if self.sources else None) / max(learned, 1)
            return loss, [float(loss.detach()), *self.sum_by_source(examples, rows)]

        group = self.model.group
        shares = self.model.backward(split_evenly(passes, group.size), compute_share)
        nothing = [0.0] * (1 + len(self.sources))
        loss, *sums = group.add_up([sum(column) for column in zip(*shares, strict=True)] or nothing)
        batch = [example for examples in passes for example in examples]
        tokens = sum(len(example.ids) for example in batch)
        return BatchResult({"loss": loss, **self.average_by_source(sums, batch, "loss")}, tokens)

    def evaluate(self, step: int) -> dict[str, float]:
        """Return metrics of the completion tokens of the held-out rows; empty if there are none.

        `eval_loss` is their mean cross-entropy, `eval_mean_token_accuracy` the share that the model finds likeliest.
        """
        size = self.rows_per_pass
        passes = [self.held_out[i : i + size] for i in range(0, len(self.held_out), size)]
        if not passes:
            return {}

        def measure(examples: Sequence[Example]) -> list[float]:
            rows: list[float] = []
            right: list[float] = []
            loss = float(self.loss(self.model.model, examples, rows if self.sources else None, right))
            return [loss, sum(right), *self.sum_by_source(examples, rows)]

        with evaluation_mode(self.model.model):
            loss, right, *sums = (sum(column) for column in zip(*self.model.each(passes, measure), strict=True))
        learned = max(1, sum(example.num_learned for example in self.held_out))
        means = {"eval_loss": loss / learned, "eval_mean_token_accuracy": right / learned}
        return {**means, **self.average_by_source(sums, self.held_out, "eval_loss")}

    def sum_by_source(self, examples: Sequence[Example], rows: Sequence[float]) -> list[float]:
        """Return the summed losses of each source of a mixture; empty if the rows are not of several sources."""
        pairs = list(zip(examples, rows, strict=bool(self.sources)))
        return [sum(loss for example, loss in pairs if example.source == name) for name in self.sources]

    def average_by_source(self, sums: Sequence[float], examples: Sequence[Example], name: str) -> dict[str, float]:
        """Return the mean loss of the sources that have learned tokens among some rows, as `loss/<source>`."""
        learned = [sum(e.num_learned for e in examples if e.source == source) for source in self.sources]
        return {
            f"{name}/{source}": total / count
            for source, total, count in zip(self.sources, sums, learned, strict=True)
            if count
        }


def run(stage: Sft, context: Context) -> Result:
    """Train `stage.model` on `stage.data`; continue from the step's own checkpoints."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    group = context.group or ALONE
    policy = load_trained_policy(context.input("model"), stage, device=context.device, dtype=stage.dtype, group=group)
    apply_chat(policy.tokenizer, stage)
    limit = resolve_max_length(policy, stage.max_length)
    encoded = context.checkpoints / "encoded"
    examples = read_examples(policy.tokenizer, context.input("data"), limit, encoded, stage.train_on, stage.long_rows)
    lengths = summarise_lengths(examples.row_lengths, limit)
    if group.main:
        print(describe_lengths(lengths))
    examples, held_out = hold_out(stage, context, policy, examples, limit)
    epochs = Epochs(
        examples.lengths,
        per_pass=stage.per_device_train_batch_size,
        passes=stage.gradient_accumulation_steps,
        seed=context.seed,
        budget=limit if stage.packing else None,
        shuffle=stage.shuffle,
    )
    apply_compute_options(policy.model, stage)
    policy = add_adapters(policy, stage)
    model = Trained(policy.model, group, policy.unread)
    loss = model.examine(lambda: choose_loss(policy.model, packing=stage.packing))
    seed_rank(model.group, context.seed)
    loop = TrainingLoop(
        settings=stage,
        total_steps=count_steps(stage.max_steps, stage.num_train_epochs, epochs.steps_per_epoch),
        model=model,
        optimizer=make_optimizer(policy.model, stage),
        objective=CompletionObjective(
            examples,
            epochs,
            loss,
            model,
            held_out=held_out,
            rows_per_pass=stage.per_device_train_batch_size,
            sources=list_mixed_sources(context.inputs),
        ),
        reporter=context,
        checkpoints=context.checkpoints,
        evaluation=stage,
    )
    loop.run()
    model.gather()
    if not model.group.main:
        return Result()
    rows = len(examples.row_lengths)
    notices = [*describe_dropped(examples.dropped, rows, limit), *describe_cut(examples.cut, rows, limit)]
    result = publish(stage, context, policy, examples, epochs, loop)
    return replace(result, details={"lengths": lengths}, notices=notices)


def hold_out(
    stage: Sft, context: Context, policy: Policy, examples: Examples, limit: int
) -> tuple[Examples, Sequence[Example]]:
    """Return what is trained on, and the rows to evaluate on: those of `validation`, a share of the data, or none."""
    if stage.validation is not None:
        data, folder = context.input("validation"), context.checkpoints / "encoded-validation"
        return examples, read_examples(policy.tokenizer, data, limit, folder, stage.train_on, stage.long_rows).kept
    if not stage.validation_fraction:
        return examples, ()
    prompts = (example.prompt_hash for example in examples.kept)
    train, held_out = split_rows(examples.kept, prompts, stage.validation_fraction)
    return replace(examples, kept=train), held_out


def list_mixed_sources(inputs: Mapping[str, Path]) -> list[str]:
    """Return the sources of the mixtures that are trained and evaluated on; empty if there are none."""
    listed = [list_sources(inputs[port], "chat") for port in ("data", "validation") if port in inputs]
    return list(dict.fromkeys(name for names in listed if len(names) > 1 for name in names))


def split_evenly(passes: Sequence[Sequence[Example]], ranks: int) -> list[Sequence[Example]]:
    """Halve the largest forward passes until every rank has as many, or none can be halved."""
    parts = list(passes)
    while len(parts) % ranks and any(len(examples) > 1 for examples in parts):
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        middle = len(parts[largest]) // 2
        parts[largest : largest + 1] = [parts[largest][:middle], parts[largest][middle:]]
    return parts


def publish(
    stage: Sft, context: Context, policy: Policy, examples: Examples, epochs: Epochs, loop: TrainingLoop
) -> Result:
    """Write the trained model and the rows used, and return the metrics. Rank 0 alone calls it."""
    metrics = {
        "loss": loop.published.metrics["loss"],
        "steps": loop.steps_taken,
        "tokens": loop.tokens,
        "rows": len(examples.kept),
        "dropped_rows": examples.dropped,
        "cut_rows": examples.cut,
        "unknown_tokens": examples.unknown,
        "trained_parameters": loop.count_trained(),
    }
    if held_out := {name: value for name, value in loop.published.metrics.items() if name.startswith("eval_")}:
        metrics |= {**held_out, "published_step": loop.published.step}
    save_trained(policy, context.output("model"), stage)
    counts = epochs.uses(loop.steps_taken).tolist()
    used = ((e.row, n, n if e.num_learned > 0 else 0) for e, n in zip(examples.kept, counts, strict=True))
    write_rows_used(context.folder, (row for row in sum_parts(used) if row[1]))
    return Result(metrics | describe_forward(policy.model))
