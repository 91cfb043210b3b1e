"""A batch that is trained on piece by piece, while its last samples are still on their way, with one optimiser step.

The gradient of a batch is a sum over its tokens, so that pieces can be added up in any order, if what stands before a
token's term is known. A group's advantages are its own. Weights over the whole batch are not known before its end, but
how much one piece counts beside another is: the weights of both together, divided by those of each alone. So pieces are
added up in the proportion of the first one to the others, and the sum is scaled once by what the whole batch says. The
whole batch also has the last word: advantages, factors and weights are computed from it once more, and what the pieces
took for granted must agree, or no step is made.

Shapes: T sampled tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.batch.loss_columns import Columns
from learning.batch.split import micro_batches
from learning.models.optimize import clip_gradients
from learning.models.sharded_model import Trained
from learning.rl.policy_loss import micro_loss, with_weights
from learning.rl.update import Sums
from learning.samples.sample import Sample
from learning.sampling.sampler import names
from schemas.errors import StepError
from schemas.stages.rl import Rl

AGREES = 1e-9
"""Relative difference, in float64, up to which the whole batch says the same as a piece."""


@dataclass(frozen=True)
class Piece:
    """A group, or neighbours, that came together: what is trained on, with its columns and its weights alone."""

    samples: list[Sample]
    batch: Batch
    share: float
    """How much it counts beside the first piece."""


class Pieces:
    """The pieces of one iteration; their gradients lie in the model until `step`.

    `prepare` makes the batch of some samples, those that the filter keeps, with columns, advantages and factors.
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
        self.pieces: list[Piece] = []
        self.sums = Sums(names([term.function for term in algorithm.components]))
        for parameter in trained.model.parameters():
            parameter.grad = None

    def add(self, samples: list[Sample]) -> None:
        """Add the gradient of groups whose completions have all ended and are scored."""
        kept, batch = self.prepare([sample for sample in samples if sample.reward is not None])
        if not batch.num_paths:
            return
        alone = self._weighted(batch)
        piece = Piece(kept, alone, self._share(kept, alone))
        self.pieces.append(piece)

        def loss_of(micro: Batch) -> tuple[Tensor, Columns]:
            model, heat = self.trained.model, self.stage.temperature
            loss, columns = micro_loss(self.algorithm, model, micro, step=self.now, temperature=heat)
            return loss * piece.share, columns

        for columns in self.trained.backward(micro_batches(alone, self.stage.max_tokens_per_micro_batch), loss_of):
            columns["parts"] = [piece.share * part for part in columns["parts"]]
            for name in self._weights:
                columns[f"{name}_T"] = piece.share * columns[f"{name}_T"]
            self.sums.add(columns, first=True)

    def whole(self, batch: Batch) -> Batch:
        """The iteration's batch with what its pieces know of their tokens, but for what follows from the whole.

        Raises StepError when the filter keeps other groups of the whole than of its pieces.
        """
        pieces = sorted(self.pieces, key=lambda piece: piece.samples[0].group)
        if batch.num_paths != sum(len(piece.samples) for piece in pieces):
            raise StepError(
                "filter: it keeps other groups of the batch than of single groups; with a drive that trains on groups "
                "as they come it must judge each by itself"
            )
        return joined(batch, [piece.batch for piece in pieces], without=("advantage", "factor", *self._weights))

    def step(self, optimizer: torch.optim.Optimizer, batch: Batch) -> dict[str, float]:
        """One optimiser step, once the whole batch (with advantages and factors) agrees; points for the curves.

        Raises StepError, before anything is changed, for a part that judges the whole batch otherwise.
        """
        if not self.pieces:
            return {}
        pieces = sorted(self.pieces, key=lambda piece: piece.samples[0].group)
        whole = self._weighted(batch)
        for column in ("advantage", *(("factor",) if self.algorithm.correct else ())):
            self._agree(column, torch.cat([p.batch.sampled(column) for p in pieces]), whole.sampled(column))
        scale = self._scale(pieces, whole)
        for parameter in self.trained.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        norm = clip_gradients(self.trained.model, self.stage.max_grad_norm)
        optimizer.step()
        return {**self.sums.means("lp_ref" in batch.tokens), "grad_norm": norm}

    def _weighted(self, batch: Batch) -> Batch:
        bare = replace(batch, tokens={k: v for k, v in batch.tokens.items() if k not in self._weights})
        return with_weights(self.algorithm, bare, self.now, self.stage.max_completion_length)

    @property
    def _weights(self) -> list[str]:
        return ["w", *(f"w.{i}" for i in range(len(self.algorithm.components)))]

    def _share(self, kept: list[Sample], alone: Batch) -> float:
        """How much a piece counts beside the first: by its weights together with those of the last one."""
        last = next((piece for piece in reversed(self.pieces) if self._mass(piece.batch)), None)
        if last is None or not self._mass(alone):
            return 1.0
        both = self._weighted(joined(forest([*last.samples, *kept]), [last.batch, alone]))
        before = len(last.batch.sampled_T)
        name = next(name for name in self._weights if bool((last.batch.sampled(name) != 0).any()))
        both_T = both.sampled(name)
        return (
            last.share
            * _quotient(both_T[before:], alone.sampled(name))
            / _quotient(both_T[:before], last.batch.sampled(name))
        )

    def _mass(self, batch: Batch) -> bool:
        """Whether any token weighs anything."""
        return any(bool((batch.sampled(name) != 0).any()) for name in self._weights)

    def _scale(self, pieces: list[Piece], whole: Batch) -> float:
        """What the sum of the pieces is to be multiplied by; one number for all tokens, or they do not add up."""
        found = None
        for name in self._weights:
            taken_T = torch.cat([piece.share * piece.batch.sampled(name) for piece in pieces]).double()
            wanted_T = whole.sampled(name).double()
            if not bool((taken_T != 0).any() or (wanted_T != 0).any()):
                continue
            found = _quotient(wanted_T, taken_T) if found is None else found
            self._agree("weight", found * taken_T, wanted_T)
        return 1.0 if found is None else found

    def _agree(self, what: str, pieces_T: Tensor, whole_T: Tensor) -> None:
        largest = float(whole_T.abs().max().clamp(min=1e-300)) if len(whole_T) else 1.0
        if float((pieces_T - whole_T).abs().max()) > AGREES * largest:
            raise StepError(
                f"drive: the {what}s of the whole batch are not those of its groups, so that groups cannot be trained "
                "on as they come: let every part judge groups by themselves (`center: {by: group}`, a weighing that "
                "compares no completions), or take a drive that waits for the batch: `drive: whole`"
            )


def joined(batch: Batch, parts: list[Batch], without: Sequence[str] = ()) -> Batch:
    """A batch of the paths of its parts, in their order, with token columns of theirs. Raises StepError."""
    ids = [[t for part in some for t in part.packed.input_ids_M[part.sampled_T].tolist()] for some in ([batch], parts)]
    if ids[0] != ids[1]:
        raise StepError("pieces: their tokens are not those of the batch")
    known = [name for name in parts[0].tokens if name not in (*batch.tokens, *without)] if parts else []
    return batch.with_tokens(**{name: torch.cat([part.sampled(name) for part in parts]) for name in known})


def _quotient(above_T: Tensor, below_T: Tensor) -> float:
    """Of two columns in proportion, by the largest entry of the second."""
    at = int(below_T.abs().argmax())
    return float(above_T[at]) / float(below_T[at]) if float(below_T[at]) else 0.0
