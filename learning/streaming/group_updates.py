"""Train on the groups of a batch as they end, while its last samples are generated, with one optimiser step.

The gradient of a batch is a sum over its tokens, so that groups can be added in any order if the factor of each token
is known. A group's advantages are its own. Weights over the whole batch are not known before its end, but the
proportion of two groups is: the weights of both together, divided by those of each alone. So groups are added in
proportion to the first one, and the sum is scaled once at the end. Then advantages, factors and weights are computed
from the whole batch; if they do not agree with what the groups assumed, no step is made.

Shapes: T sampled tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm
from learning.algorithm.loss import LossSums, micro_loss, with_weights
from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView
from learning.batch.micro_batches import split_micro_batches
from learning.models.optimize import clip_gradients
from learning.models.sharded_model import Trained
from learning.samples.sample import Sample
from learning.sampling.sampler import names
from schemas.errors import StepError
from schemas.stages.rl import Rl

AGREES = 1e-9
"""Relative difference, in float64, up to which the batch agrees with its groups."""


@dataclass(frozen=True)
class TrainedGroup:
    """Samples that were trained on together, with their columns and the weights that they have alone."""

    samples: list[Sample]
    batch: Batch
    share: float
    """Its weight relative to the first."""


class GroupUpdates:
    """The groups of one iteration; their gradients are in the model until `step`.

    `prepare` returns those of some samples that the filter keeps, and their batch with columns, advantages and factors.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        trained: Trained,
        stage: Rl,
        step: int,
        prepare: Callable[[list[Sample]], tuple[list[Sample], Batch]],
    ) -> None:
        self.algorithm, self.trained, self.stage, self.now, self.prepare = algorithm, trained, stage, step, prepare
        self.groups: list[TrainedGroup] = []
        self.sums = LossSums(names([term.function for term in algorithm.loss_terms]))
        for parameter in trained.model.parameters():
            parameter.grad = None

    def add(self, samples: list[Sample]) -> None:
        """Add the gradient of scored groups."""
        scored, batch = self.prepare([sample for sample in samples if sample.reward is not None])
        if not batch.num_paths:
            return
        alone = self._weighted(batch)
        group = TrainedGroup(scored, alone, self._share(scored, alone))
        self.groups.append(group)

        def loss_of(micro: Batch) -> tuple[Tensor, ColumnView]:
            model, temperature = self.trained.model, self.stage.temperature
            loss, columns = micro_loss(self.algorithm, model, micro, step=self.now, temperature=temperature)
            return loss * group.share, columns

        for columns in self.trained.backward(
            split_micro_batches(alone, self.stage.max_tokens_per_micro_batch), loss_of
        ):
            columns["parts"] = [group.share * part for part in columns["parts"]]
            for name in self._weights:
                columns[f"{name}_T"] = group.share * columns[f"{name}_T"]
            self.sums.add(columns, first=True)

    def join(self, batch: Batch) -> Batch:
        """Return the iteration's batch with the columns of its groups, except those that depend on the whole batch.

        Raise StepError when the filter keeps other groups of the whole batch than one by one.
        """
        groups = self._in_order()
        if batch.num_paths != sum(len(group.samples) for group in groups):
            raise StepError(
                "filter: it keeps other groups of the batch than of single groups; with a drive that trains on groups "
                "as they come it must judge each by itself"
            )
        return joined(batch, [group.batch for group in groups], without=("advantage", "factor", *self._weights))

    def step(self, optimizer: torch.optim.Optimizer, batch: Batch) -> dict[str, float]:
        """Make the optimiser step if the batch (with advantages and factors) agrees with its groups; return metrics.

        Raise StepError, before anything is changed, if it does not.
        """
        if not self.groups:
            return {}
        groups = self._in_order()
        weighted = self._weighted(batch)
        for column in ("advantage", *(("factor",) if self.algorithm.importance_correction else ())):
            self._agree(column, torch.cat([group.batch.sampled(column) for group in groups]), weighted.sampled(column))
        scale = self._scale(groups, weighted)
        for parameter in self.trained.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        norm = clip_gradients(self.trained.model, self.stage.max_grad_norm)
        optimizer.step()
        return {**self.sums.means("lp_ref" in batch.tokens), "grad_norm": norm}

    def _in_order(self) -> list[TrainedGroup]:
        return sorted(self.groups, key=lambda group: group.samples[0].group)

    def _weighted(self, batch: Batch) -> Batch:
        bare = replace(batch, tokens={k: v for k, v in batch.tokens.items() if k not in self._weights})
        return with_weights(self.algorithm, bare, self.now, self.stage.max_completion_length)

    @property
    def _weights(self) -> list[str]:
        return ["w", *(f"w.{i}" for i in range(len(self.algorithm.loss_terms)))]

    def _share(self, scored: list[Sample], alone: Batch) -> float:
        """Return the weight of a group relative to the first: from its weights together with those of the last one."""
        last = next((group for group in reversed(self.groups) if self._has_weight(group.batch)), None)
        if last is None or not self._has_weight(alone):
            return 1.0
        both = self._weighted(joined(forest([*last.samples, *scored]), [last.batch, alone]))
        before = len(last.batch.sampled_T)
        name = next(name for name in self._weights if bool((last.batch.sampled(name) != 0).any()))
        both_T = both.sampled(name)
        return (
            last.share
            * _quotient(both_T[before:], alone.sampled(name))
            / _quotient(both_T[:before], last.batch.sampled(name))
        )

    def _has_weight(self, batch: Batch) -> bool:
        """Return whether any token has a weight."""
        return any(bool((batch.sampled(name) != 0).any()) for name in self._weights)

    def _scale(self, groups: list[TrainedGroup], weighted: Batch) -> float:
        """Return the factor for the sum of the groups. Raise StepError if it is not the same for all tokens."""
        scale = None
        for name in self._weights:
            taken_T = torch.cat([group.share * group.batch.sampled(name) for group in groups]).double()
            wanted_T = weighted.sampled(name).double()
            if not bool((taken_T != 0).any() or (wanted_T != 0).any()):
                continue
            scale = _quotient(wanted_T, taken_T) if scale is None else scale
            self._agree("weight", scale * taken_T, wanted_T)
        return 1.0 if scale is None else scale

    def _agree(self, what: str, groups_T: Tensor, batch_T: Tensor) -> None:
        largest = float(batch_T.abs().max().clamp(min=1e-300)) if len(batch_T) else 1.0
        if float((groups_T - batch_T).abs().max()) > AGREES * largest:
            raise StepError(
                f"rollout: the {what}s of the batch are not those of its groups, so groups cannot be trained on as "
                "they end: let every part judge groups by themselves (`center: {by: group}`, a weighing that "
                "compares no completions), or take a rollout function that waits for the batch: `rollout: synchronous`"
            )


def joined(batch: Batch, parts: list[Batch], without: Sequence[str] = ()) -> Batch:
    """Return a batch with the token columns of its parts, which are its paths in order. Raise StepError otherwise."""
    ids = [[t for part in some for t in part.packed.input_ids_M[part.sampled_T].tolist()] for some in ([batch], parts)]
    if ids[0] != ids[1]:
        raise StepError("groups: their tokens are not those of the batch")
    shared = [name for name in parts[0].tokens if name not in (*batch.tokens, *without)] if parts else []
    return batch.with_tokens(**{name: torch.cat([part.sampled(name) for part in parts]) for name in shared})


def _quotient(above_T: Tensor, below_T: Tensor) -> float:
    """Return the quotient of two proportional columns, at the largest entry of the second."""
    at = int(below_T.abs().argmax())
    return float(above_T[at]) / float(below_T[at]) if float(below_T[at]) else 0.0
