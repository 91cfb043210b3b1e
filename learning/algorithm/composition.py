"""An RL algorithm: functions named in a recipe, bound to their options, each asking for its columns by name.

The names of a function's parameters before its `*` are what it needs; the loop computes what a part asks for and
nothing else. A new surrogate that takes `lp_ref_T` makes the reference policy run; no other edit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from learning.lookup import Bound, bind
from schemas.number_schedules import Number, settle
from schemas.stages.rl import Rl
from schemas.use import Use


@dataclass(frozen=True)
class LossTerm:
    """A further term of the loss; `loss_aggregation` and `token_mask` None: those of the policy loss."""

    function: Bound
    coef: Number
    loss_aggregation: Bound | None = None
    token_mask: tuple[Bound, ...] | None = None


@dataclass(frozen=True)
class AdvantageStream:
    """A further advantage pipeline over one reward."""

    of: str
    coef: Number
    advantage: tuple[Bound, ...]


@dataclass(frozen=True)
class Algorithm:
    """The slots of an rl stage from rewards to the loss, bound."""

    advantage: tuple[Bound, ...]
    ratio: Bound
    policy_loss: Bound
    loss_aggregation: Bound
    loss_terms: tuple[LossTerm, ...] = ()
    advantage_streams: tuple[AdvantageStream, ...] = ()
    reward_shaping: tuple[Bound, ...] = ()
    advantage_shaping: tuple[Bound, ...] = ()
    importance_correction: tuple[Bound, ...] = ()
    token_mask: tuple[Bound, ...] = ()
    controllers: Mapping[str, Bound] = field(default_factory=dict)
    auxiliary_models: tuple[Bound, ...] = ()
    """Functions of the critic and the auxiliary models: their columns are computed too."""

    def needs(self, column: str) -> bool:
        """Return whether any part asks for a column."""
        return any(column in part.asks for part in self.parts())

    def list_needed_names(self) -> set[str]:
        """Return every name that some part needs."""
        return {name for part in self.parts() for name in part.asks}

    def parts(self) -> Iterator[Bound]:
        """Yield every bound function."""
        yield from (self.ratio, self.policy_loss, self.loss_aggregation, *self.advantage)
        for name in LISTS:
            yield from getattr(self, name)
        yield from (*self.controllers.values(), *self.auxiliary_models)
        for stream in self.advantage_streams:
            yield from stream.advantage
        for term in self.loss_terms:
            yield term.function
            yield from (term.loss_aggregation,) if term.loss_aggregation else ()
            yield from term.token_mask or ()

    def settled(self, controls: Mapping[str, float]) -> "Algorithm":
        """Return the same algorithm with the numbers that controllers give."""
        if not controls:
            return self

        def each(parts: Sequence[Bound]) -> tuple[Bound, ...]:
            return tuple(part.settled(controls) for part in parts)

        terms = [
            replace(
                term,
                function=term.function.settled(controls),
                coef=settle(term.coef, controls),
                loss_aggregation=term.loss_aggregation.settled(controls) if term.loss_aggregation else None,
                token_mask=None if term.token_mask is None else each(term.token_mask),
            )
            for term in self.loss_terms
        ]
        streams = [
            replace(stream, coef=settle(stream.coef, controls), advantage=each(stream.advantage))
            for stream in self.advantage_streams
        ]
        return replace(
            self,
            **{name: getattr(self, name).settled(controls) for name in ("ratio", "policy_loss", "loss_aggregation")},
            **{name: each(getattr(self, name)) for name in ("advantage", *LISTS)},
            loss_terms=tuple(terms),
            advantage_streams=tuple(streams),
        )


LISTS = ("reward_shaping", "advantage_shaping", "importance_correction", "token_mask")
"""Slots besides `advantage` that hold functions in order."""


def bind_algorithm(stage: Rl, inputs: Mapping[str, Path]) -> Algorithm:
    """Bind every slot of the stage. Raise StepError for an unknown name or option."""

    def many(slot: str, uses: Sequence[Use]) -> tuple[Bound, ...]:
        return tuple(bind(use, f"{slot}.{i}", inputs) for i, use in enumerate(uses))

    terms = [
        LossTerm(
            bind(use, f"loss_terms.{i}", inputs),
            use.coef,
            bind(use.loss_aggregation, f"loss_terms.{i}.loss_aggregation", inputs) if use.loss_aggregation else None,
            None if use.token_mask is None else many(f"loss_terms.{i}.token_mask", use.token_mask),
        )
        for i, use in enumerate(stage.loss_terms)
    ]
    streams = [
        AdvantageStream(stream.of, stream.coef, many(f"advantage_streams.{i}.advantage", stream.advantage))
        for i, stream in enumerate(stage.advantage_streams)
    ]
    return Algorithm(
        ratio=bind(stage.ratio, "ratio", inputs),
        policy_loss=bind(stage.policy_loss, "policy_loss", inputs),
        loss_aggregation=bind(stage.loss_aggregation, "loss_aggregation", inputs),
        loss_terms=tuple(terms),
        advantage_streams=tuple(streams),
        controllers={name: bind(use, f"controllers.{name}", inputs) for name, use in stage.controllers.items()},
        auxiliary_models=tuple(_of_auxiliary_models(stage, inputs)),
        **{name: many(name, getattr(stage, name)) for name in ("advantage", *LISTS)},
    )


def _of_auxiliary_models(stage: Rl, inputs: Mapping[str, Path]) -> Iterator[Bound]:
    """Yield the token masks and targets of the critic and the auxiliary models."""
    blocks = {"critic": stage.critic} if stage.critic else {}
    blocks |= {f"auxiliary_models.{name}": block for name, block in stage.auxiliary_models.items()}
    for port, block in blocks.items():
        yield from (bind(use, f"{port}.token_mask.{i}", inputs) for i, use in enumerate(block.token_mask))
    for name, block in stage.auxiliary_models.items():
        if block.target is not None:
            yield bind(block.target, f"auxiliary_models.{name}.target", inputs)
