"""kind: action_values — Q and V of tokens, offline, from episodes with rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learning.auxiliary_networks.action_value_columns import NEXT_REFERENCE, make_columns
from learning.auxiliary_networks.action_values import Learner, make_action_values, save_action_values
from learning.auxiliary_networks.episode_rows import encode_episodes, list_rewards
from learning.batch.batch_layout import forest
from learning.batch.micro_batches import split_micro_batches
from learning.data.chat_settings import apply_chat
from learning.data.epochs import Epochs
from learning.data.rows import Row, read_rows
from learning.data.rows_used import count_batched, write_rows_used
from learning.evaluation.sampled_answers import AnswerSample, compute_weighted_scores
from learning.lookup import Bound, bind
from learning.models.forwards import apply_compute_options
from learning.models.memory import keep_pages
from learning.models.optimize import make_optimizer
from learning.models.packed import describe_forward
from learning.models.policy import Policy, load_policy, resolve_max_length, set_determinism
from learning.models.sharded_model import Trained
from learning.samples.sample import Sample
from learning.training.loop import BatchResult, Objective, TrainingLoop, count_steps
from schemas.errors import StepError
from schemas.number_schedules import Number, value_at
from schemas.stages.action_values import ActionValues as Stage
from tasks.context import Context, Result
from tasks.dropped_rows import describe_dropped


@dataclass(frozen=True)
class Term:
    """One loss and its weight."""

    function: Bound
    weight: Number


def bind_losses(stage: Stage, inputs: Mapping[str, Path]) -> list[Term]:
    """Bind the stage's losses. Raise StepError for an unknown name or option."""
    return [Term(bind(use, f"loss.{i}", inputs), use.weight) for i, use in enumerate(stage.loss)]


def compute_losses(terms: Sequence[Term], columns: Mapping[str, Any], step: int) -> dict[str, Tensor]:
    """Return the weighted sum over the tokens of each loss, by its name."""
    losses: dict[str, Tensor] = {}
    for term in terms:
        own = value_at(term.weight, step) * term.function.ask(step, columns).sum()
        losses[term.function.name] = losses.get(term.function.name, 0.0) + own
    return losses


@dataclass
class ValueObjective(Objective):
    """Mean over the tokens of a batch of episodes of the weighted sum of losses."""

    stage: Stage
    terms: list[Term]
    learner: Learner
    reference: Any
    samples: Sequence[Sample]
    epochs: Epochs
    model: Trained

    def backward(self, step: int) -> BatchResult:
        """Let the slow copy follow, add the gradient of one batch, and return its losses."""
        slow = self.stage.target_network
        if slow is not None and step and step % slow.sync_steps == 0:
            self.learner.follow(slow.mixup_alpha)
        batch = forest([self.samples[row] for row in self.epochs.at(step)[0]])
        count, asked = len(batch.sampled_T), {name for term in self.terms for name in term.function.asks}

        def compute_share(micro: Any) -> tuple[Tensor, dict[str, float]]:
            columns = make_columns(self.learner, micro, asked, self.reference)
            losses = compute_losses(self.terms, columns, step)
            numbers = {name: float(loss.detach()) / count for name, loss in losses.items()}
            numbers["v"] = float(columns["v_T"].detach().sum()) / count
            return torch.stack(list(losses.values())).sum() / count, numbers

        micros = split_micro_batches(batch, self.stage.max_tokens_per_micro_batch)
        shares = self.model.backward(micros, compute_share)
        metrics = {name: sum(share[name] for share in shares) for name in shares[0]}
        loss = sum(value for name, value in metrics.items() if name != "v")
        return BatchResult({"loss": loss, **metrics}, len(batch.packed.input_ids_M))


def run(stage: Stage, context: Context) -> Result:
    """Train Q and V on `stage.data`; continue from the step's own checkpoints."""
    set_determinism(context.seed, context.num_threads)
    keep_pages()
    policy = load_policy(context.input("model"), device=context.device, dtype=stage.dtype)
    apply_chat(policy.tokenizer, stage)
    policy.max_length = resolve_max_length(policy, stage.max_length)
    rows = read_rows(context.input("data"), "chat")
    encoded = encode_episodes(policy.tokenizer, rows, find_rewards(stage, context, rows), policy.max_length)
    if not encoded.samples:
        raise StepError(
            f"action_values: none of {len(rows)} episodes fits into {policy.max_length} tokens; raise max_length"
        )
    terms = bind_losses(stage, context.inputs)
    network = make_action_values(policy, stage.heads, start=stage.start, scale=stage.logits_scale, seed=context.seed)
    apply_compute_options(network.body, stage)
    learner = Learner(network, slow=stage.target_network is not None)
    sizes = [len(one.prompt_ids) + len(one.completion_ids) for one in encoded.samples]
    epochs = Epochs(sizes, per_pass=stage.per_device_train_batch_size, passes=1, seed=context.seed)
    model = Trained(learner)
    loop = TrainingLoop(
        settings=stage,
        total_steps=count_steps(stage.max_steps, stage.num_train_epochs, epochs.steps_per_epoch),
        model=model,
        optimizer=make_optimizer(network, stage),
        objective=ValueObjective(
            stage, terms, learner, find_reference(stage, context, terms, policy), encoded.samples, epochs, model
        ),
        reporter=context,
        checkpoints=context.checkpoints,
    )
    loop.run()
    save_action_values(learner.target, policy, context.output("values"))
    ids = (one.row["id"] for one in encoded.samples)
    write_rows_used(context.folder, count_batched(ids, epochs.uses(loop.steps_taken)))
    earned = [sum(turn.reward for turn in one.turns) for one in encoded.samples]
    metrics = {
        "steps": loop.steps_taken,
        "episodes": len(encoded.samples),
        "dropped.too_long": encoded.too_long,
        "mean_return": sum(earned) / len(earned),
        "loss": loop.published.metrics["loss"],
    }
    notices = describe_dropped(encoded.too_long, len(rows), policy.max_length)
    return Result(metrics | describe_forward(network.body), notices=notices)


def find_rewards(stage: Stage, context: Context, rows: Sequence[Row]) -> list[list[float]]:
    """Return what each turn of each episode earned: by its metadata, or by the stage's rewards at the last turn.

    Raise StepError for a row without rewards, or that they cannot score.
    """
    if not stage.rewards:
        return [list_rewards(row) for row in rows]
    bound = [bind(use, f"rewards.{i}", context.inputs) for i, use in enumerate(stage.rewards)]
    weights, texts = [use.weight for use in stage.rewards], [row["completion"][-1]["content"] for row in rows]
    samples = [AnswerSample(text, "stop") for text in texts]
    # The last turn is scored after everything before it.
    shown = [row | {"prompt": [*row["prompt"], *row["completion"][:-1]]} for row in rows]
    scores = compute_weighted_scores(bound, weights, shown, texts, samples=samples)
    if (place := next((i for i, score in enumerate(scores) if score is None), None)) is not None:
        raise StepError(f"action_values: row {rows[place]['id']}: the rewards cannot score its last turn; leave it out")
    turns = [sum(m["role"] == "assistant" for m in [*row["prompt"], *row["completion"]]) for row in rows]
    return [[*[0.0] * (n - 1), float(score or 0.0)] for n, score in zip(turns, scores, strict=True)]


def find_reference(stage: Stage, context: Context, terms: Sequence[Term], policy: Policy) -> Any:
    """Return the model whose greedy tokens a loss asks for; None if no loss does."""
    if not any(NEXT_REFERENCE in term.function.asks for term in terms):
        return None
    if stage.reference is None:
        return policy.model
    return load_policy(context.input("reference"), device=context.device, dtype=stage.dtype).model
