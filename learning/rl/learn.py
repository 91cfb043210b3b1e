"""What an iteration of an RL loop makes of its batch: columns, advantages, the update."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.batch.routing_replay import with_experts
from learning.models.optimize import learning_rate_at
from learning.rl.collection import gate
from learning.rl.policy_loss import with_advantages, with_dropped, with_factors
from learning.rl.state import TrainingState
from learning.rl.streamed_update import Pieces
from learning.rl.update import update, with_proximal
from learning.samples.sample import Sample
from schemas.stages.rl import Rl


def learn(
    training: TrainingState,
    stage: Rl,
    batch: Batch,
    step: int,
    controls: Mapping[str, float],
    have: Mapping[str, Any],
    pieces: Pieces | None = None,
) -> tuple[Batch, dict[str, float]]:
    """Columns that do not change, advantages, then the update; returns the batch with its advantages, and points.

    `pieces`: the batch has been trained on group by group, and only the step is left.
    """
    algorithm = training.algorithm.settled(controls)
    batch = pieces.whole(batch) if pieces else with_columns(training, stage, algorithm, batch)
    batch = credited(training, algorithm, batch, step, controls, have)
    for group in training.optimizer.param_groups:
        group["lr"] = learning_rate_at(stage, step, stage.max_steps) * training.rate
    if pieces:
        points = pieces.step(training.optimizer, batch)
    else:
        more = {"beside": training.beside, "controls": controls, "have": have}
        points = update(algorithm, training.trained, training.optimizer, batch, stage, step, **more)
    points |= training.beside.points(batch)
    training.beside.refresh(step)
    training.references.refresh(training.policy, step)
    return batch, points


def with_columns(training: TrainingState, stage: Rl, algorithm: Algorithm, batch: Batch) -> Batch:
    """Add what models say of the tokens, and which of them weigh nothing."""
    trained = training.trained
    how = {"max_tokens": stage.max_tokens_per_micro_batch, "temperature": stage.temperature}
    batch = training.references.add_to(with_dropped(batch, stage.mask_truncated_completions), trained, **how)
    if stage.routing_replay:
        batch = with_experts(batch, trained.model, max_tokens=stage.max_tokens_per_micro_batch, each=trained.each)
    return training.beside.values(with_proximal(algorithm, batch, trained, stage))


def credited(
    training: TrainingState,
    algorithm: Algorithm,
    batch: Batch,
    step: int,
    controls: Mapping[str, float],
    have: Mapping[str, Any],
) -> Batch:
    """Add advantages, what networks beside the policy are to predict, and factors."""
    known = {"states": training.states, "rows": have["rows"]}
    batch = with_advantages(algorithm, batch, step, **known)
    batch = training.beside.with_targets(batch, step, controls, **known)
    return with_factors(algorithm, batch, step, seed=have["seed"])


def in_pieces(
    training: TrainingState, stage: Rl, step: int, controls: Mapping[str, float], have: Mapping[str, Any]
) -> Pieces:
    """Somebody who trains on groups as they come."""
    algorithm = training.algorithm.settled(controls)
    prepare = partial(_prepared, training, stage, algorithm, step, controls, have)
    return Pieces(algorithm, training.trained, stage, step, prepare)


def _prepared(
    training: TrainingState,
    stage: Rl,
    algorithm: Algorithm,
    step: int,
    controls: Mapping[str, float],
    have: Mapping[str, Any],
    samples: list[Sample],
) -> tuple[list[Sample], Batch]:
    """Those of some samples that the filter keeps, and their batch."""
    batch = gate(training.collecting.filter, samples, step, controls, {**have, "history": training.history})
    kept = [samples[path] for path in batch.paths["path"].tolist()]
    batch = forest(kept)
    if not kept:
        return kept, batch
    mine = {**have, "rows": [sample.row for sample in kept]}
    return kept, credited(training, algorithm, with_columns(training, stage, algorithm, batch), step, controls, mine)
