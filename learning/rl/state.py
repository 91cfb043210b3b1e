"""The state of an RL stage while it trains, and its checkpoints: a resumed run is bit-identical."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm
from learning.api.spending import SpendingAccount
from learning.batch.batch import Batch
from learning.models.checkpoint import (
    Saved,
    add_prefix,
    get_optimizer_state,
    get_trained_weights,
    load_latest,
    load_optimizer_state,
    load_weights,
    save_checkpoint,
    shard_like_trained,
    strip_prefix,
)
from learning.models.policy import Policy
from learning.models.sharded_model import Trained
from learning.parallel.group import Group
from learning.parallel.random_states import collect_random_states, restore_random_states
from learning.rl.monitoring import Curves, Watchdogs
from learning.rl.sample_counts import SampleCounts
from learning.rl.sampling_slots import SamplingSlots
from learning.samples.engine_protocol import EngineProtocol
from learning.samples.sample import History, Messages, Row, States
from learning.sampling.iteration_context import IterationContext
from learning.sampling.trajectories import Parts, Trajectories
from schemas.errors import StepError
from schemas.stages.rl import Rl

if TYPE_CHECKING:
    from learning.rl.references import References

PLAIN = ("states", "examples", "parts", "rate", "stopped", "sampled", "evaluations")
"""Fields that a checkpoint holds as JSON as they are."""
Json = Any
"""A plain value in a checkpoint's JSON."""


Evaluated = tuple[int, dict[str, float]]
"""Number of iterations done, and the metrics of the held-out problems after them."""
BEST = "best"
"""Folder of the weights of the best evaluation, beside the checkpoints."""


class ReportExample(TypedDict):
    """A completion that the report shows."""

    prompt: Messages
    completion: str
    reward: float | None


class AuxiliaryNetworks(Protocol):
    """The critic and the auxiliary models of a stage, trained next to its policy."""

    def add_values(self, batch: Batch) -> Batch:
        """Add their columns."""
        ...

    def add_targets(
        self, batch: Batch, step: int, controls: Mapping[str, float], states: States, rows: Sequence[Row]
    ) -> Batch:
        """Add what they are to predict, once the advantages are there."""
        ...

    def is_warming_up(self, step: int) -> bool:
        """Return whether the policy is not trained yet at this step."""
        ...

    def update(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """Make one optimiser step of each."""
        ...

    def refresh(self, step: int) -> None:
        """Move slow copies, after an iteration."""
        ...

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return metrics since the last call."""
        ...

    def publish(self, policy: Policy, output: Callable[[str], Path]) -> None:
        """Write those that the stage publishes."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, moments and copies."""
        ...

    def state(self) -> dict[str, Json]:
        """Return what belongs to a checkpoint besides tensors."""
        ...

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Json]) -> None:
        """Restore what `tensors` and `state` returned."""
        ...


@dataclass
class TrainingState:
    """Everything that an RL stage keeps from iteration to iteration."""

    stage: Rl
    seed: int
    policy: Policy
    trained: Trained
    """The policy's model and the group of processes that trains it."""
    acting: Policy
    """The policy that samples: the same, or a full copy where each rank holds a shard of the trained one."""
    optimizer: torch.optim.Optimizer
    engine: EngineProtocol
    algorithm: Algorithm
    slots: SamplingSlots
    references: "References | None"
    """Reference policies; None if no function asks for their log-probabilities."""
    auxiliary_models: AuxiliaryNetworks | None
    rows: Sequence[Row]
    held_out_rows: Sequence[Row]
    trajectories: Trajectories
    curves: Curves
    watchdogs: Watchdogs
    checkpoints: Path
    account: SpendingAccount | None = None
    """The account under which rewards ask servers."""
    spend: Callable[[int], None] = lambda tokens: None
    """Counts sampled tokens against the budget."""
    spending: Saved | None = None
    """What the step has spent; a resumed stage goes on from what it had spent."""
    report_progress: Callable[..., None] = lambda step, total, **metrics: None
    counts: SampleCounts = field(default_factory=SampleCounts)
    history: History = field(default_factory=History)
    states: States = field(default_factory=dict)
    """Memory of slot functions, by slot."""
    examples: dict[str, list[ReportExample]] = field(default_factory=dict)
    """Completions of the first and the last iteration, for the report."""
    parts: Parts = field(default_factory=list)
    sampled: int = 0
    """Tokens sampled so far."""
    rate: float = 1.0
    """Factor on the learning rate that rollbacks leave."""
    stopped: str | None = None
    """Why the stage ended early."""
    evaluations: list[Evaluated] = field(default_factory=list)
    """Evaluations on the held-out problems so far."""

    @property
    def group(self) -> Group:
        """The processes that train."""
        return self.trained.group

    @property
    def best_evaluation(self) -> Evaluated:
        """The first of the evaluations with the best metric; raise ValueError if there is none."""
        metric, sign = self.stage.metric_for_best_model, 1 if self.stage.greater_is_better else -1
        return max(self.evaluations, key=lambda evaluated: sign * evaluated[1][metric])

    def keeps(self, step: int) -> bool:
        """Return whether the weights after `step` iterations are kept as the best so far."""
        return self.stage.load_best_model_at_end and bool(self.evaluations) and self.best_evaluation[0] == step

    @property
    def saved_parts(self) -> dict[str, Saved]:
        """Parts that return their own state for a checkpoint."""
        parts: dict[str, Saved] = {
            "history": self.history,
            "curves": self.curves,
            "watchdogs": self.watchdogs,
            "counts": self.counts,
        }
        parts |= {} if self.spending is None else {"spending": self.spending}
        engine: Any = self.engine
        return parts | {"engine": engine} if hasattr(engine, "to_json") else parts

    def close(self) -> None:
        """Stop threads and workers of the engine."""
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()


def iteration_context(training: TrainingState, step: int) -> IterationContext:
    """Return what the functions of the slots may ask for in an iteration."""
    stage = training.stage
    return IterationContext(
        step=step,
        seed=training.seed,
        rows=training.rows,
        num_groups=stage.generation_batch_size // stage.num_generations,
        n=stage.num_generations,
        states=training.states,
        metrics=training.curves.last,
        max_steps=stage.max_steps,
        account=training.account,
    )


def sync_weights(training: TrainingState, version: int) -> None:
    """Give the engine the new weights; every rank takes part."""
    if training.acting is not training.policy:
        training.trained.copy_to(training.acting.model)
    training.engine.sync(version)


def save(training: TrainingState, step: int) -> None:
    """Write a checkpoint from which a killed step continues; a good one also serves for rollbacks."""
    training.parts.append((step, training.trajectories.write_part(step) if training.group.main else ""))
    if training.watchdogs.is_good:
        save_good(training, step)
    rng_tensors, rng_state = collect_random_states(training.group)
    plain = {name: getattr(training, name) for name in PLAIN}
    memories = {name: part.to_json() for name, part in training.saved_parts.items()}
    tensors, state = _trained_state(training)
    tensors |= rng_tensors
    if training.references is not None:
        tensors |= add_prefix("references", training.references.tensors())
    state |= {**rng_state, "plain": plain, "memories": memories}
    save_checkpoint(training.checkpoints, step, tensors, state, training.group)


def resume(training: TrainingState) -> int:
    """Return the iteration to start at: 0, or that of the latest checkpoint, whose state is restored."""
    latest = load_latest(
        training.checkpoints,
        like=shard_like_trained(get_trained_weights(training.policy.model), training.optimizer),
        group=training.group,
        refuse=lambda state: training.trajectories.damaged(state["plain"]["parts"]),
    )
    if latest is None:
        save_good(training, 0)
        return 0
    step, tensors, state = latest
    _restore_trained(training, tensors, state)
    if training.references is not None:
        training.references.load(strip_prefix("references", tensors))
    restore_random_states(tensors, state, training.group)
    for name in PLAIN:
        setattr(training, name, state["plain"][name])
    training.evaluations = [(step, metrics) for step, metrics in training.evaluations]
    for name, part in training.saved_parts.items():
        part.load(state["memories"][name])
    sync_weights(training, step)
    return step


def save_good(training: TrainingState, step: int) -> None:
    """Keep the weights for rollbacks, where some watch may ask for one."""
    if any(watch.action != "warn" for watch in training.watchdogs.watches):
        tensors, state = _trained_state(training)
        save_checkpoint(training.checkpoints / "good", step, tensors, state, training.group)


def save_best(training: TrainingState, step: int) -> None:
    """Keep the policy's weights after `step` iterations, until better ones are kept."""
    save_checkpoint(training.checkpoints / BEST, step, get_trained_weights(training.policy.model), None, training.group)


def restore_best(training: TrainingState) -> None:
    """Load the weights of the best evaluation into the policy, and into the copy that samples.

    Raise StepError if they are missing or damaged.
    """
    weights, (step, _) = get_trained_weights(training.policy.model), training.best_evaluation
    latest = load_latest(
        training.checkpoints / BEST, step, like=lambda name, shape: weights.get(name), group=training.group
    )
    if latest is None or latest[0] != step:
        where = f"the weights of iteration {step}"
        raise StepError(f"load_best_model_at_end: {where} are missing or damaged; run the stage with --fresh")
    load_weights(weights, latest[1])
    if training.acting is not training.policy:
        training.trained.copy_to(training.acting.model)


def roll_back(training: TrainingState, step: int) -> int:
    """Restore weights and moments of the last good checkpoint up to `step`; return its iteration.

    A killed run may have left a checkpoint that lies ahead of the iteration from which it was resumed.
    """
    like = shard_like_trained(get_trained_weights(training.policy.model), training.optimizer)
    good = load_latest(training.checkpoints / "good", upto=step, like=like, group=training.group)
    if good is None:
        raise StepError("watch: no good checkpoint to step back to is left; delete the checkpoints and run again")
    back, tensors, state = good
    _restore_trained(training, tensors, state)
    return back


def _trained_state(training: TrainingState) -> tuple[dict[str, Tensor], dict[str, Json]]:
    """Return weights and moments of everything that is trained."""
    moments, optimizer = get_optimizer_state(training.optimizer)
    tensors = add_prefix("model", get_trained_weights(training.policy.model)) | add_prefix("optimizer", moments)
    if training.auxiliary_models is None:
        return tensors, {"optimizer": optimizer}
    tensors |= add_prefix("auxiliary_models", training.auxiliary_models.tensors())
    return tensors, {"optimizer": optimizer, "auxiliary_models": training.auxiliary_models.state()}


def _restore_trained(training: TrainingState, tensors: dict[str, Tensor], state: Mapping[str, Json]) -> None:
    load_weights(get_trained_weights(training.policy.model), strip_prefix("model", tensors))
    load_optimizer_state(training.optimizer, strip_prefix("optimizer", tensors), state["optimizer"])
    if training.auxiliary_models is not None:
        training.auxiliary_models.load(strip_prefix("auxiliary_models", tensors), state["auxiliary_models"])
