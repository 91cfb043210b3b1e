"""The logits processors of a stage as what an engine calls. Shapes: B sequences being sampled, V vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from learning.lookup import Bound, bind
from learning.samples.engine_protocol import Processor
from schemas.use import LogitsProcessorUse


@dataclass(frozen=True)
class LogitsProcessing:
    """Functions with their options, applied one after the other; each gets what it asks for by name."""

    calls: tuple[tuple[Callable[..., Tensor], tuple[str, ...]], ...]

    @property
    def reads_contexts(self) -> bool:
        """Whether a function looks at the tokens before the one that is sampled."""
        return any("contexts_B" in asked for _, asked in self.calls)

    def __call__(self, logits_BV: Tensor, place_B: Tensor, contexts_B: list[list[int]] | None = None) -> Tensor:
        """Return the changed logits."""
        for call, asked in self.calls:
            supplies: dict[str, Any] = {"logits_BV": logits_BV, "place_B": place_B, "contexts_B": contexts_B}
            logits_BV = call(*(supplies[name] for name in asked))
        return logits_BV


def bind_processors(
    uses: Mapping[str, Sequence[LogitsProcessorUse]], model: str, inputs: Mapping[str, Path]
) -> Processor | None:
    """Return what an engine applies to the logits of one of the models of an evaluation; None without functions."""
    own = uses.get(model, ())
    return make_processor([bind(use, f"logits_processors.{model}.{i}", inputs) for i, use in enumerate(own)])


def make_processor(parts: Sequence[Bound], step: int = 0) -> Processor | None:
    """Return what an engine applies to logits; None without functions."""
    return LogitsProcessing(tuple((part.at(step), tuple(part.asks)) for part in parts)) if parts else None
