"""kind: sft — supervised fine-tuning on completions."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from learning.data.epochs import Epochs
from learning.data.examples import Example, Examples, read_examples
from learning.data.rows_used import write_used
from learning.models.checkpoint import load_training, save_training, trained_weights
from learning.models.crossentropy import Loss, loss_for
from learning.models.forwards import economical
from learning.models.memory import keep_pages
from learning.models.optimize import clip_gradients, learning_rate_at, make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import Policy, load_policy, room, set_determinism
from learning.models.sharded_model import Trained
from learning.models.trained_policy import save_trained
from learning.parallel.group import ALONE
from learning.parallel.random_states import own_randomness
from schemas.stages.sft import Sft
from tasks.context import Context, Result

TOLD = ("curve", "window", "tokens")
"""What a loop remembers beside weights, optimiser and random states."""


@dataclass
class Loop:
    """What a stage holds while it runs; `curve`, `window` and `tokens` are what it has told so far."""

    stage: Sft
    context: Context
    policy: Policy
    model: Trained
    examples: Examples
    epochs: Epochs
    loss: Loss
    optimizer: torch.optim.Optimizer
    total_steps: int
    curve: list[dict[str, float]] = field(default_factory=list)
    window: list[dict[str, float]] = field(default_factory=list)
    tokens: int = 0


def run(stage: Sft, context: Context) -> Result:
    """Train `stage.model` on `stage.data`; continues from the step's own checkpoints."""
    loop = prepare(stage, context)
    for step in range(resume(loop), loop.total_steps):
        learn(loop, step)
        if (step + 1) % stage.save_steps == 0 and step + 1 < loop.total_steps:
            save(loop, step + 1)
    return publish(loop)


def prepare(stage: Sft, context: Context) -> Loop:
    """Load the policy, encode the rows, cut them into steps."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    policy = load_policy(context.input("model"), device=context.device, dtype=stage.dtype)
    limit = room(policy, stage.max_length)
    examples = read_examples(policy.tokenizer, context.input("data"), limit, context.checkpoints / "encoded")
    epochs = Epochs(
        examples.lengths,
        per_pass=stage.per_device_train_batch_size,
        passes=stage.gradient_accumulation_steps,
        seed=context.seed,
        budget=limit if stage.packing else None,
    )
    total = stage.max_steps if stage.max_steps > 0 else math.ceil(stage.num_train_epochs * epochs.steps_per_epoch)
    economical(policy.model, stage)
    if stage.use_peft:
        from learning.models.adapters import attach  # peft takes long to import, and few need it

        policy = replace(policy, model=attach(policy.model, stage))
    loss = loss_for(policy.model, packing=stage.packing)
    group = context.group or ALONE
    model = Trained(policy.model, group)
    own_randomness(group, context.seed)
    return Loop(stage, context, policy, model, examples, epochs, loss, make_optimizer(policy.model, stage), total)


def learn(loop: Loop, step: int) -> None:
    """One optimiser step: the mean over the learned tokens of all its forward passes, then tell how it went."""
    began, stage = time.perf_counter(), loop.stage
    passes = [[loop.examples.kept[row] for row in rows] for rows in loop.epochs.at(step)]
    rate = learning_rate_at(stage, step, loop.total_steps)
    for group in loop.optimizer.param_groups:
        group["lr"] = rate
    loop.optimizer.zero_grad(set_to_none=True)
    loss = backward(loop, passes)
    norm = clip_gradients(loop.policy.model, stage.max_grad_norm)
    loop.optimizer.step()
    tokens = sum(len(example.ids) for examples in passes for example in examples)
    seconds = time.perf_counter() - began
    tell(loop, step, {"loss": loss, "learning_rate": rate, "grad_norm": norm, "tokens": tokens, "seconds": seconds})


def backward(loop: Loop, passes: Sequence[Sequence[Example]]) -> float:
    """Add up the gradient; returns the mean loss. The denominator is that of the whole step, not of each pass."""
    learned = sum(example.num_learned for examples in passes for example in examples)

    def mean(examples: Sequence[Example]) -> tuple[torch.Tensor, float]:
        loss = loop.loss(loop.policy.model, examples) / max(learned, 1)
        return loss, float(loss.detach())

    return loop.model.group.add_up([sum(loop.model.backward(shared(passes, loop.model.group.size), mean))])[0]


def shared(passes: Sequence[Sequence[Example]], ranks: int) -> list[Sequence[Example]]:
    """Forward passes of which every rank has as many: the largest are halved until it is so, or none can be."""
    parts = list(passes)
    while len(parts) % ranks and any(len(examples) > 1 for examples in parts):
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        middle = len(parts[largest]) // 2
        parts[largest : largest + 1] = [parts[largest][:middle], parts[largest][middle:]]
    return parts


def tell(loop: Loop, step: int, point: dict[str, float]) -> None:
    """Count, tell progress, and add to the curves."""
    loop.tokens += int(point["tokens"])
    loop.context.spend(int(point["tokens"]))
    loop.window = [*loop.window, point]
    if (step + 1) % loop.stage.logging_steps == 0 or step + 1 == loop.total_steps:
        means = {name: sum(p[name] for p in loop.window) / len(loop.window) for name in point}
        speed = means.pop("tokens") / means.pop("seconds")
        loop.curve.append({"step": step + 1, **means, "tokens_per_second": speed})
        loop.window = []
        loop.context.log(**loop.curve[-1])
    speed = point["tokens"] / point["seconds"]
    loop.context.progress(step + 1, loop.total_steps, loss=point["loss"], tokens_per_second=speed)


def save(loop: Loop, step: int) -> None:
    """Leave a checkpoint from which a killed step continues, to the same bits; the data's order follows the step."""
    told = {name: getattr(loop, name) for name in TOLD}
    save_training(
        loop.context.checkpoints, step, trained_weights(loop.policy.model), loop.optimizer, told, loop.model.group
    )


def resume(loop: Loop) -> int:
    """The step to start at: 0, or that of the latest checkpoint, with everything put back."""
    found = load_training(
        loop.context.checkpoints, trained_weights(loop.policy.model), loop.optimizer, loop.model.group
    )
    if found is None:
        return 0
    step, told = found
    for name in TOLD:
        setattr(loop, name, told[name])
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
    metrics = {
        "loss": loop.curve[-1]["loss"],
        "steps": loop.total_steps,
        "tokens": loop.tokens,
        "rows": len(loop.examples.kept),
        "dropped_rows": loop.examples.dropped,
        "unknown_tokens": loop.examples.unknown,
        "trained_parameters": sum(parameter.numel() for parameter in trained_weights(loop.policy.model).values()),
    }
    save_trained(loop.policy, folder, adapted=loop.stage.use_peft)
    kept, counts = loop.examples.kept, loop.epochs.uses(loop.total_steps)
    used = ((e.row, count, count if e.num_learned > 0 else 0) for e, count in zip(kept, counts.tolist(), strict=True))
    write_used(loop.context.folder, (row for row in used if row[1]))
    return Result(metrics | describe_forward(loop.policy.model))
