"""Update the policy: passes over a batch, one optimiser step per mini-batch, gradients summed over micro-batches.

Every rank of a group holds the batch; the ranks share its micro-batches.

Shapes: T sampled tokens.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm
from learning.algorithm.loss import LossSums, micro_loss, view_columns, with_weights
from learning.batch.batch import Batch
from learning.batch.micro_batches import split_mini_batches, split_shared_micro_batches, statistics_of
from learning.lookup import Overlay, Supplies
from learning.models.optimize import clip_gradients
from learning.models.sharded_model import Trained
from learning.sampling.sampler import names
from schemas.stages.rl import Rl

CURRENT = ("lp", "entropy", "lp_mean", "collision")
"""Statistics of the current weights that parts of the algorithm may ask for."""


class TrainedWithPolicy(Protocol):
    """Networks that are trained on the same mini-batches as the policy."""

    def is_warming_up(self, step: int) -> bool:
        """Return whether the policy is not trained yet at this step."""
        ...

    def update(self, mini: Batch, step: int, controls: Mapping[str, float] | None = None) -> None:
        """Make one optimiser step of each."""
        ...


def with_proximal(algorithm: Algorithm, batch: Batch, trained: Trained, stage: Rl) -> Batch:
    """Add the token columns `lp_prox`, `lp_mean_prox` … that are asked for: statistics of the current weights."""
    names = tuple(name for name in CURRENT if algorithm.needs(f"{name}_prox_T"))
    if not names:
        return batch
    statistics = current_statistics(batch, trained, stage, names)
    return batch.with_tokens(**{f"{name}_prox": column for name, column in statistics.items()})


def current_statistics(batch: Batch, trained: Trained, stage: Rl, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return statistics of a batch's sampled tokens under the current weights."""
    return statistics_of(
        batch,
        trained.model,
        names,
        max_tokens=stage.max_tokens_per_micro_batch,
        temperature=stage.temperature,
        replay=True,
        each=trained.each,
    )


def regulate(algorithm: Algorithm, step: int, supplies: Supplies) -> dict[str, float]:
    """Return the numbers of the controllers that read the last metrics; each may use those before it."""
    numbers: dict[str, float] = {}
    for name, controller in algorithm.controllers.items():
        if not _reads_tokens(controller.asks):
            numbers[name] = controller.settled(numbers).ask(step, supplies)
    return numbers


def regulate_on_batch(
    algorithm: Algorithm, batch: Batch, trained: Trained, stage: Rl, step: int, supplies: Supplies
) -> dict[str, float]:
    """Return the numbers of the controllers that read the batch about to be trained on."""
    reading = {name: part for name, part in algorithm.controllers.items() if _reads_tokens(part.asks)}
    if not reading:
        return {}
    asked = {name for part in reading.values() for name in part.asks}
    names = ("lp", *(name for name in CURRENT[1:] if f"{name}_T" in asked))
    columns = view_columns(batch, current_statistics(batch, trained, stage, names))
    available = Overlay(columns, {name: supplies[name] for name in supplies})
    return {name: part.ask(step, available) for name, part in reading.items()}


def _reads_tokens(asked: Sequence[str]) -> bool:
    return any(name.endswith("_T") for name in asked)


def update(
    algorithm: Algorithm,
    trained: Trained,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    stage: Rl,
    step: int,
    *,
    auxiliary_models: TrainedWithPolicy | None = None,
    controls: Mapping[str, float] | None = None,
    context: Supplies | None = None,
) -> dict[str, float]:
    """Train on a batch that has advantages and all fixed columns; return metrics.

    `auxiliary_models` are trained on the same mini-batches, with the numbers `controls`; `context` is what controllers
    may ask for besides columns.
    """
    sums, norms = LossSums(names([term.function for term in algorithm.loss_terms])), []
    numbers: dict[str, float] = {}
    for i in range(stage.num_iterations):
        for j, mini in enumerate(split_mini_batches(batch, stage.num_mini_batches)):
            if auxiliary_models is not None:
                auxiliary_models.update(mini, step, controls)
                if auxiliary_models.is_warming_up(step):
                    continue
            numbers = regulate_on_batch(algorithm, mini, trained, stage, step, context or {})
            current = algorithm.settled(numbers)
            mini = with_weights(current, mini, step, stage.max_completion_length)
            optimizer.zero_grad(set_to_none=True)
            micros = split_shared_micro_batches(mini, stage.max_tokens_per_micro_batch, trained.group)
            loss_of = partial(micro_loss, current, trained.model, step=step, temperature=stage.temperature)
            for columns in trained.backward(micros, loss_of):
                sums.add(columns, first=i == j == 0)
            norms.append(clip_gradients(trained.model, stage.max_grad_norm))
            optimizer.step()
    if not norms:
        return {}
    means = sums.over_ranks(trained.group).means("lp_ref" in batch.tokens)
    return {
        **means,
        **{f"controller/{name}": value for name, value in numbers.items()},
        "grad_norm": sum(norms) / len(norms),
    }
