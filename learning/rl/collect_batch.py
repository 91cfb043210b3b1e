"""What one iteration of an RL loop samples and trains on, equal on every rank of its group."""

from collections.abc import Mapping
from typing import Any

from learning.batch.batch import Batch
from learning.generation.replicas.shared_engine import by_main
from learning.rl.collection import collect, gate
from learning.rl.state import TrainingState
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler


def harvest(
    training: TrainingState, sampler: Sampler, controls: Mapping[str, float], have: Mapping[str, Any]
) -> tuple[list[Sample], Batch, int]:
    """The samples, the batch of those that the filter keeps, and how many tokens were sampled.

    Rank 0 plans, drives and scores, so that a reward is paid once, and all ranks sample; `have` is as for `collect`.
    """

    def drive() -> tuple[list[Sample], Batch, int, dict[str, Any]]:
        samples = collect(training.collecting, sampler, training.history, controls, have)
        kept = [sample for sample in samples if sample.reward is not None]
        batch = gate(training.collecting.filter, kept, have["step"], controls, {**have, "history": training.history})
        return samples, batch, sampler.sampled, dict(training.states)

    samples, batch, sampled, states = by_main(training.group, training.engine, sampler.sampling.processor, drive)
    training.states.update(states)
    return samples, batch, sampled
