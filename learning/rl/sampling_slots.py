"""The slots of an rl stage from its problems to the samples that are trained on, bound to their functions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.batch.batch_layout import forest
from learning.batch.columns import ColumnView
from learning.lookup import Bound, Overlay, Supplies, bind
from learning.models.policy import Policy
from learning.models.sharded_model import Trained
from learning.samples.engine_protocol import EngineProtocol, FlyingEngine, Processor
from learning.samples.sample import Sample
from learning.sampling.iteration_context import IterationContext
from learning.sampling.processing import make_processor
from learning.sampling.sampler import names, score
from learning.sampling.scoring import PlacedReward
from schemas.number_schedules import Controlled, Number, settle
from schemas.stages.rl import Rl


class UpdatesByGroup(Protocol):
    """Trains on groups as they end, with one optimiser step at the end of the iteration."""

    def add(self, samples: list[Sample]) -> None:
        """Add the gradient of scored groups."""
        ...

    def join(self, batch: Batch) -> Batch:
        """Return the iteration's batch with the columns of its groups."""
        ...

    def step(self, optimizer: torch.optim.Optimizer, batch: Batch) -> dict[str, float]:
        """Make the optimiser step and return metrics."""
        ...


class Overlap(Protocol):
    """What a rollout brings that generates while the policy is trained."""

    def stream_local(self, stage: Rl, policy: Policy, wrap: Callable[[FlyingEngine], FlyingEngine]) -> EngineProtocol:
        """Return an engine that generates in a thread of this process with a copy of the policy."""
        ...

    def stream_remote(self, engine: Any) -> EngineProtocol:
        """Return an engine over one that generates in workers of its own."""
        ...

    def group_updates(
        self,
        algorithm: Algorithm,
        trained: Trained,
        stage: Rl,
        step: int,
        prepare: Callable[[list[Sample]], tuple[list[Sample], Batch]],
    ) -> UpdatesByGroup:
        """Return what trains on groups as they end."""
        ...


@dataclass(frozen=True)
class SamplingSlots:
    """The functions of the slots, bound to their options."""

    prompt_sampler: Bound
    rollout: Bound
    logits_processors: tuple[Bound, ...]
    rewards: tuple[Bound | PlacedReward, ...]
    weights: tuple[Number, ...]
    resample: tuple[Bound, ...]
    extra_samples: tuple[Bound, ...]
    filter_groups: Bound | None
    max_sampling_rounds: int
    read: frozenset[str] = frozenset()
    """Rewards whose raw scores other parts read."""
    shown: dict[str, str] = field(default_factory=dict, compare=False)
    """First failure of each reward that has raised, as printed to the step's log."""

    def needs(self, name: str) -> bool:
        """Return whether a function asks for a name."""
        functions = (self.prompt_sampler, self.rollout, *self.rewards, *self.resample, *self.extra_samples)
        return any(
            name in function.asks for function in (*functions, *((self.filter_groups,) if self.filter_groups else ()))
        )

    @property
    def overlap(self) -> Overlap | None:
        """What the rollout brings to generate while the policy is trained; None for one that waits for its samples."""
        return getattr(self.rollout.function, "overlap", None)

    def score(self, samples: list[Sample], controls: Mapping[str, float], context: IterationContext) -> None:
        """Fill in the scores and rewards of samples, with the numbers that controllers give."""
        if samples:
            rewards = [reward.settled(controls) for reward in self.rewards]
            weights = [settle(weight, controls) for weight in self.weights]
            score(rewards, weights, samples, context, self.read, self.shown)

    def logits_processor(
        self, step: int, controls: Mapping[str, float], metrics: Mapping[str, float]
    ) -> Processor | None:
        """Return what the engine applies to logits; None where there is nothing to change.

        Controllers that look at batches have not seen this one: their numbers of the last iteration count, as its
        metrics have them. A processor with an option whose controller has no number yet is left out.
        """
        known = {
            key.removeprefix("controller/"): value for key, value in metrics.items() if key.startswith("controller/")
        }
        settled_parts = [part.settled({**known, **controls}) for part in self.logits_processors]
        ready = [p for p in settled_parts if not any(isinstance(value, Controlled) for value in p.options.values())]
        return make_processor(ready, step)


def keep_groups(
    group_filter: Bound | None, samples: list[Sample], step: int, controls: Mapping[str, float], supplies: Supplies
) -> Batch:
    """Return the batch of the groups that the filter keeps; its paths have the places of the scored samples."""
    batch = forest(samples)
    if group_filter is None or not samples:
        return batch
    columns = ColumnView(batch, rows=[sample.row for sample in samples])
    keep_P = group_filter.settled(controls).ask(step, Overlay(supplies, columns))
    return batch.take(torch.as_tensor(keep_P).nonzero()[:, 0].tolist())


def bind_sampling_slots(stage: Rl, inputs: Mapping[str, Path]) -> SamplingSlots:
    """Bind every slot. Raise StepError for an unknown name or option."""
    rewards = tuple(bind(use, f"rewards.{i}", inputs) for i, use in enumerate(stage.rewards))
    return SamplingSlots(
        prompt_sampler=bind(stage.prompt_sampler, "prompt_sampler", inputs),
        rollout=bind(stage.rollout, "rollout", inputs),
        logits_processors=tuple(
            bind(use, f"logits_processors.{i}", inputs) for i, use in enumerate(stage.logits_processors)
        ),
        rewards=rewards,
        weights=tuple(use.weight for use in stage.rewards),
        resample=tuple(bind(use, f"resample.{i}", inputs) for i, use in enumerate(stage.resample)),
        extra_samples=tuple(bind(use, f"extra_samples.{i}", inputs) for i, use in enumerate(stage.extra_samples)),
        filter_groups=bind(stage.filter_groups, "filter_groups", inputs) if stage.filter_groups else None,
        max_sampling_rounds=stage.max_sampling_rounds,
        read=frozenset(_rewards_read(stage, rewards)),
    )


def _rewards_read(stage: Rl, rewards: Sequence[Bound]) -> Iterator[str]:
    """Yield the names of rewards that other parts mention, and the first one's, which parts mean by default.

    A first reward that is optional, and that no part mentions, may lack scores.
    """
    mentioned = set(_strings(stage.model_dump(mode="json", exclude={"rewards"})))
    for i, (name, reward) in enumerate(zip(names(rewards), rewards, strict=True)):
        if name in mentioned or (i == 0 and not reward.optional):
            yield name


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in plain values, keys of maps included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (str(key), *_strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
