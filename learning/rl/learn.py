"""What an iteration of an RL loop makes of its batch: columns, advantages, the update."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.batch.routing_replay import add_expert_column
from learning.models.optimize import learning_rate_at
from learning.rl.collection import gate
from learning.rl.policy_loss import with_advantages, with_dropped, with_factors
from learning.rl.state import Loop
from learning.rl.streamed_update import Pieces
from learning.rl.update import update, with_proximal
from learning.samples.sample import Sample
from schemas.stages.rl import Rl


def learn(
    loop: Loop,
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
    algorithm = loop.algorithm.settled(controls)
    batch = pieces.whole(batch) if pieces else with_columns(loop, stage, algorithm, batch)
    batch = credited(loop, algorithm, batch, step, controls, have)
    for group in loop.optimizer.param_groups:
        group["lr"] = learning_rate_at(stage, step, stage.max_steps) * loop.rate
    if pieces:
        points = pieces.step(loop.optimizer, batch)
    else:
        more = {"beside": loop.beside, "controls": controls, "have": have}
        points = update(algorithm, loop.trained, loop.optimizer, batch, stage, step, **more)
    points |= loop.beside.points(batch)
    loop.beside.refresh(step)
    loop.references.refresh(loop.policy, step)
    return batch, points


def with_columns(loop: Loop, stage: Rl, algorithm: Algorithm, batch: Batch) -> Batch:
    """Add what models say of the tokens, and which of them weigh nothing."""
    trained = loop.trained
    how = {"max_tokens": stage.max_tokens_per_micro_batch, "temperature": stage.temperature}
    batch = loop.references.add_to(with_dropped(batch, stage.mask_truncated_completions), trained, **how)
    if stage.routing_replay:
        batch = add_expert_column(batch, trained.model, max_tokens=stage.max_tokens_per_micro_batch, each=trained.each)
    return loop.beside.values(with_proximal(algorithm, batch, trained, stage))


def credited(
    loop: Loop,
    algorithm: Algorithm,
    batch: Batch,
    step: int,
    controls: Mapping[str, float],
    have: Mapping[str, Any],
) -> Batch:
    """Add advantages, what networks beside the policy are to predict, and factors."""
    known = {"states": loop.states, "rows": have["rows"]}
    batch = with_advantages(algorithm, batch, step, **known)
    batch = loop.beside.with_targets(batch, step, controls, **known)
    return with_factors(algorithm, batch, step, seed=have["seed"])


def in_pieces(loop: Loop, stage: Rl, step: int, controls: Mapping[str, float], have: Mapping[str, Any]) -> Pieces:
    """Somebody who trains on groups as they come."""
    algorithm = loop.algorithm.settled(controls)
    prepare = partial(_prepared, loop, stage, algorithm, step, controls, have)
    return Pieces(algorithm, loop.trained, stage, step, prepare)


def _prepared(
    loop: Loop,
    stage: Rl,
    algorithm: Algorithm,
    step: int,
    controls: Mapping[str, float],
    have: Mapping[str, Any],
    samples: list[Sample],
) -> tuple[list[Sample], Batch]:
    """Those of some samples that the filter keeps, and their batch."""
    batch = gate(loop.collecting.filter_groups, samples, step, controls, {**have, "history": loop.history})
    kept = [samples[path] for path in batch.paths["path"].tolist()]
    batch = forest(kept)
    if not kept:
        return kept, batch
    mine = {**have, "rows": [sample.row for sample in kept]}
    return kept, credited(loop, algorithm, with_columns(loop, stage, algorithm, batch), step, controls, mine)
