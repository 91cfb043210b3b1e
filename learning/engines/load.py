"""The engine of a stage: in this process, or as replicas in workers of their own where the stage's resources say so."""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from learning.actors import Actors
from learning.engines.protocol import EngineProtocol
from learning.lookup import options_of
from learning.policy import Policy, load_policy, outline
from learning.remote.desk import Desk
from schemas.errors import StepError
from schemas.training import Training
from schemas.use import EngineUse


def engine_of(use: EngineUse, policy: Any, desk: Desk | None = None) -> EngineProtocol:
    """An engine over a policy, in this process: `torch` is `learning.engines.torch:Engine`. Raises StepError.

    The keys beside `use` are the options of its constructor; `desk` is for one that asks a server.
    """
    module, _, name = use.use.partition(":") if ":" in use.use else (f"{use.home}.{use.use}", "", "Engine")
    try:
        engine = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise StepError(f"engine: use: {use.use}: {error}") from error
    asks = [desk] if "desk" in inspect.signature(engine).parameters else []
    return engine(policy, *asks, **options_of(engine.__init__, use.options, use.use))


def make_engine(
    use: EngineUse,
    policy: Any,
    actors: Actors | None = None,
    *,
    folder: Path | None = None,
    scratch: Path | None = None,
    training: Training | None = None,
    desk: Desk | None = None,
) -> EngineProtocol:
    """An engine over a policy, here or in workers. Raises StepError.

    Where the role `rollout` has workers, each of them loads the policy from `folder`, where it lies as it is now;
    later weights go through files in `scratch` (None: they never change), and its blocks compute as `training` says.
    """
    if actors is None or not actors.size("rollout"):
        return engine_of(use, policy, desk)
    from learning.replica_worker import serve
    from learning.replicas import Replicas
    from learning.weight_sync_local import Files

    dtype = str(policy.model.dtype).removeprefix("torch.")
    remotes = actors.start("rollout", serve, use, str(folder), dtype, training)
    return Replicas(actors, remotes, partial(Files, policy, scratch) if scratch is not None else None)


def policy_for(folder: Path, device: str, actors: Actors | None) -> Policy:
    """The policy that an engine here samples with; where workers do, all but its weights. Raises StepError."""
    return outline(folder) if actors is not None and actors.size("rollout") else load_policy(folder, device=device)


@contextmanager
def engine_for(
    use: EngineUse, policy: Any, actors: Actors | None, folder: Path, desk: Desk | None = None
) -> Iterator[EngineProtocol]:
    """An engine over a policy that does not change, for a while: workers are free again afterwards."""
    engine = make_engine(use, policy, actors, folder=folder, desk=desk)
    try:
        yield engine
    finally:
        if actors is not None and actors.size("rollout"):
            engine.close()
