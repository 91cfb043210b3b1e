"""What rollouts bring that generate while the policy is trained; the loop itself knows none of it."""

from collections.abc import Callable
from typing import Any, TypeVar

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.generation.services.local_rollouts import LocalRollouts
from learning.models.policy import Policy
from learning.models.sharded_model import Trained
from learning.samples.engine_protocol import FlyingEngine
from learning.samples.sample import Sample
from learning.streaming.group_updates import GroupUpdates
from learning.streaming.stream import Stream
from schemas.stages.rl import Rl

Rollout = TypeVar("Rollout", bound=Callable[..., Any])


class StreamOverlap:
    """Streams of completions, and updates by single groups."""

    def stream_local(self, stage: Rl, policy: Policy, wrap: Callable[[FlyingEngine], FlyingEngine]) -> Stream:
        """Return an engine that generates in a thread of this process with a copy of the policy."""
        return Stream(LocalRollouts(stage.engine, policy, wrap))

    def stream_remote(self, engine: Any) -> Stream:
        """Return an engine over one that generates in workers of its own."""
        return Stream(engine)

    def group_updates(
        self,
        algorithm: Algorithm,
        trained: Trained,
        stage: Rl,
        step: int,
        prepare: Callable[[list[Sample]], tuple[list[Sample], Batch]],
    ) -> GroupUpdates:
        """Return what trains on groups as they end."""
        return GroupUpdates(algorithm, trained, stage, step, prepare)


def overlaps_training(rollout: Rollout) -> Rollout:
    """Mark a rollout as one that generates while the policy is trained: the loop makes its engine a `Stream`."""
    rollout.overlap = StreamOverlap()  # pyright: ignore[reportFunctionMemberAccess]  # functions take attributes
    return rollout
