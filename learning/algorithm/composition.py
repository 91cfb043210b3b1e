"""An RL algorithm: functions named in a recipe, bound to their options, each asking for its columns by name.

The names of a function's parameters before its `*` are what it needs; the loop computes what somebody asks for and
nothing else. A new surrogate that takes `lp_ref_T` makes the reference policy run; no other edit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from learning.lookup import Bound, bind
from schemas.schedules import Number, settled
from schemas.stages.rl import Rl
from schemas.use import Use


@dataclass(frozen=True)
class Term:
    """A component of the loss; `weigh` and `select` None: those of the surrogate."""

    function: Bound
    coef: Number
    weigh: Bound | None = None
    select: tuple[Bound, ...] | None = None


@dataclass(frozen=True)
class Branch:
    """A further stream of reward with a pipeline of its own."""

    of: str
    coef: Number
    advantage: tuple[Bound, ...]


@dataclass(frozen=True)
class Algorithm:
    """The slots of an rl stage from rewards to the loss, bound."""

    advantage: tuple[Bound, ...]
    ratio: Bound
    surrogate: Bound
    weigh: Bound
    components: tuple[Term, ...] = ()
    branches: tuple[Branch, ...] = ()
    shape: tuple[Bound, ...] = ()
    modulate: tuple[Bound, ...] = ()
    correct: tuple[Bound, ...] = ()
    select: tuple[Bound, ...] = ()
    control: Mapping[str, Bound] = field(default_factory=dict)
    beside: tuple[Bound, ...] = ()
    """Functions of the critic and the auxiliaries, for what they ask for."""

    def needs(self, column: str) -> bool:
        """Whether any part asks for a column."""
        return any(column in part.asks for part in self.parts())

    def asked(self) -> set[str]:
        """Everything that some part asks for."""
        return {name for part in self.parts() for name in part.asks}

    def parts(self) -> Iterator[Bound]:
        """Every bound function."""
        yield from (self.ratio, self.surrogate, self.weigh, *self.advantage)
        yield from (*self.shape, *self.modulate, *self.correct, *self.select, *self.control.values(), *self.beside)
        for branch in self.branches:
            yield from branch.advantage
        for term in self.components:
            yield from (term.function, *((term.weigh,) if term.weigh else ()), *(term.select or ()))

    def settled(self, controls: Mapping[str, float]) -> "Algorithm":
        """The same with the numbers that controllers give."""
        if not controls:
            return self

        def each(parts: Sequence[Bound]) -> tuple[Bound, ...]:
            return tuple(part.settled(controls) for part in parts)

        terms = [
            replace(
                term,
                function=term.function.settled(controls),
                coef=settled(term.coef, controls),
                weigh=term.weigh.settled(controls) if term.weigh else None,
                select=None if term.select is None else each(term.select),
            )
            for term in self.components
        ]
        branches = [replace(b, coef=settled(b.coef, controls), advantage=each(b.advantage)) for b in self.branches]
        one = {name: getattr(self, name).settled(controls) for name in ("ratio", "surrogate", "weigh")}
        many = {name: each(getattr(self, name)) for name in ("advantage", "shape", "modulate", "correct", "select")}
        return replace(self, **one, **many, components=tuple(terms), branches=tuple(branches))


def bind_algorithm(stage: Rl, inputs: Mapping[str, Path]) -> Algorithm:
    """Bind every slot of the stage; raises StepError for an unknown name or option."""

    def many(slot: str, uses: Sequence[Use]) -> tuple[Bound, ...]:
        return tuple(bind(use, f"{slot}.{i}", inputs) for i, use in enumerate(uses))

    terms = [
        Term(
            bind(use, f"components.{i}", inputs),
            use.coef,
            bind(use.weigh, f"components.{i}.weigh", inputs) if use.weigh else None,
            None if use.select is None else many(f"components.{i}.select", use.select),
        )
        for i, use in enumerate(stage.components)
    ]
    branches = [
        Branch(branch.of, branch.coef, many(f"branches.{i}.advantage", branch.advantage))
        for i, branch in enumerate(stage.branches)
    ]
    return Algorithm(
        ratio=bind(stage.ratio, "ratio", inputs),
        surrogate=bind(stage.surrogate, "surrogate", inputs),
        weigh=bind(stage.weigh, "weigh", inputs),
        components=tuple(terms),
        branches=tuple(branches),
        control={name: bind(use, f"control.{name}", inputs) for name, use in stage.control.items()},
        beside=tuple(_beside(stage, inputs)),
        **{name: many(name, getattr(stage, name)) for name in ("advantage", "shape", "modulate", "correct", "select")},
    )


def _beside(stage: Rl, inputs: Mapping[str, Path]) -> Iterator[Bound]:
    """Selections and targets of the networks beside the policy."""
    blocks = {"critic": stage.critic} if stage.critic else {}
    blocks |= {f"auxiliaries.{name}": block for name, block in stage.auxiliaries.items()}
    for port, block in blocks.items():
        yield from (bind(use, f"{port}.select.{i}", inputs) for i, use in enumerate(block.select))
    for name, block in stage.auxiliaries.items():
        if block.target is not None:
            yield bind(block.target, f"auxiliaries.{name}.target", inputs)
