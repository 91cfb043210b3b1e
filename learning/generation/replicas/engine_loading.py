"""The engine of a stage: in this process, or as replicas in workers of their own where the stage's resources say so."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from learning.api.spending import SpendingAccount
from learning.generation.engines.making import build_engine
from learning.models.policy import Policy, load_outline, load_policy
from learning.parallel.actors import Actors
from learning.samples.engine_protocol import EngineProtocol
from schemas.training import Training
from schemas.use import EngineUse


def make_engine(
    use: EngineUse,
    policy: Any,
    actors: Actors | None = None,
    *,
    folder: Path | None = None,
    scratch: Path | None = None,
    training: Training | None = None,
    desk: SpendingAccount | None = None,
) -> EngineProtocol:
    """An engine over a policy, here or in workers. Raises StepError.

    Where the role `rollout` has workers, each of them loads the policy from `folder`, where it lies as it is now;
    later weights go through files in `scratch` (None: they never change), and its blocks compute as `training` says.
    """
    if actors is None or not actors.size("rollout"):
        return build_engine(use, policy, desk)
    from learning.generation.replicas.replica_worker import serve
    from learning.generation.replicas.replicas import Replicas
    from learning.generation.weights.local import Files

    dtype = str(policy.model.dtype).removeprefix("torch.")
    remotes = actors.start("rollout", serve, use, str(folder), dtype, training)
    return Replicas(actors, remotes, partial(Files, policy, scratch) if scratch is not None else None)


def load_sampling_policy(folder: Path, device: str, actors: Actors | None) -> Policy:
    """The policy that an engine here samples with; where workers do, all but its weights. Raises StepError."""
    return load_outline(folder) if actors is not None and actors.size("rollout") else load_policy(folder, device=device)


@contextmanager
def open_engine(
    use: EngineUse, policy: Any, actors: Actors | None, folder: Path, desk: SpendingAccount | None = None
) -> Iterator[EngineProtocol]:
    """An engine over a policy that does not change, for a while: workers are free again afterwards."""
    engine = make_engine(use, policy, actors, folder=folder, desk=desk)
    try:
        yield engine
    finally:
        if actors is not None and actors.size("rollout"):
            engine.close()
