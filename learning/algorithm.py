"""An RL algorithm: functions named in a recipe, bound to their options, each asking for its columns by name.

The names of a function's parameters before its `*` are what it needs; the loop computes what somebody asks for and
nothing else. A new surrogate that takes `lp_ref_T` makes the reference policy run; no other edit.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning.lookup import Bound, bind
from schemas.errors import StepError
from schemas.schedules import Number
from schemas.stages.rl import Rl


@dataclass(frozen=True)
class Term:
    """A component of the loss; `weigh` None: the weights of the surrogate."""

    function: Bound
    coef: Number
    weigh: Bound | None


@dataclass(frozen=True)
class Algorithm:
    """The slots of an rl stage, bound."""

    advantage: tuple[Bound, ...]
    ratio: Bound
    surrogate: Bound
    weigh: Bound
    components: tuple[Term, ...]
    filter: Bound | None = None

    def needs(self, column: str) -> bool:
        """Whether any part of the loss asks for a column."""
        parts = (self.ratio, self.surrogate, *(term.function for term in self.components))
        return any(column in wanted(part.function) for part in parts)


def bind_algorithm(stage: Rl, inputs: Mapping[str, Path]) -> Algorithm:
    """Bind every slot of the stage; raises StepError for an unknown name or option."""
    return Algorithm(
        tuple(bind(use, f"advantage.{i}", inputs) for i, use in enumerate(stage.advantage)),
        bind(stage.ratio, "ratio", inputs),
        bind(stage.surrogate, "surrogate", inputs),
        bind(stage.weigh, "weigh", inputs),
        tuple(
            Term(
                bind(use, f"components.{i}", inputs),
                use.coef,
                bind(use.weigh, f"components.{i}.weigh", inputs) if use.weigh else None,
            )
            for i, use in enumerate(stage.components)
        ),
        bind(stage.filter, "filter", inputs) if stage.filter else None,
    )


def wanted(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters that the loop is to supply."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def supply(bound: Bound, step: int, columns: Mapping[str, Any]) -> Any:
    """Call a slot's function with the columns it asks for; raises StepError for one that the loop does not have."""
    names = wanted(bound.function)
    if missing := [name for name in names if name not in columns]:
        have = ", ".join(sorted(columns))
        raise StepError(f"use: {bound.name}: asks for {', '.join(missing)}; the loop supplies {have}")
    return bound.at(step)(*(columns[name] for name in names))
