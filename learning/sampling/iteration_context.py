"""What one RL iteration supplies to the functions of its slots, by the names of their parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from learning.api.spending import SpendingAccount
from learning.models.policy import Policy
from learning.samples.engine_protocol import EngineProtocol
from learning.samples.sample import History, Row, Sample, SampleRequest, States
from learning.sampling.sampler import Sampler

RequestSamples = Callable[[int], list[SampleRequest]]
"""Returns what an iteration is to sample."""
ScoreGroup = Callable[[list[Sample], int, int], None]
"""(samples, iteration that requested them, place of the group in it): fills in their scores."""
TrainOnGroup = Callable[[list[Sample]], None]
"""Adds the gradient of a scored group."""


@dataclass(frozen=True)
class IterationContext:
    """The values of one iteration; those that are None cannot be asked for at this place of it."""

    step: int
    """The iteration, from 0."""
    seed: int
    rows: Sequence[Row]
    """The problems of the stage; in filters and advantages, the problem of every sample."""
    num_groups: int
    n: int
    """Completions of a group."""
    states: States = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the iteration before."""
    max_steps: int | None = None
    account: SpendingAccount | None = None
    """The account under which servers are asked."""
    sampler: Sampler | None = None
    history: History | None = None
    round: int | None = None
    """Round of resampling within the iteration, from 0."""
    requests: Sequence[SampleRequest] | None = None
    samples: Sequence[Sample] | None = None
    request_samples: RequestSamples | None = None
    score: ScoreGroup | None = None
    consume: TrainOnGroup | None = None

    @property
    def engine(self) -> EngineProtocol | None:
        """The engine that samples."""
        return self.sampler.engine if self.sampler else None

    @property
    def stream(self) -> EngineProtocol | None:
        """The engine, for rollouts that keep groups in flight."""
        return self.engine

    @property
    def policy(self) -> Policy | None:
        """The policy that samples."""
        return self.sampler.policy if self.sampler else None

    def __contains__(self, name: object, /) -> bool:
        return name in NAMES and getattr(self, str(name)) is not None

    def __getitem__(self, name: str, /) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in NAMES if name in self)


NAMES = (*(field.name for field in fields(IterationContext)), "engine", "stream", "policy")
