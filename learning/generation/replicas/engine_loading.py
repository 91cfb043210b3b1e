"""Build the engine of a stage: in this process, or as replicas in workers if the stage's resources have such a role."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from learning.api.spending import SpendingAccount
from learning.data.chat_settings import apply_chat
from learning.generation.replicas.replica_worker import serve
from learning.generation.replicas.replicas import Replicas
from learning.generation.weights.local import Files
from learning.lookup import build
from learning.models.policy import Policy, load_outline, load_policy
from learning.parallel.actors import Actors
from learning.samples.engine_protocol import EngineProtocol
from schemas.chat import Chat
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
    account: SpendingAccount | None = None,
    chat: Chat | None = None,
) -> EngineProtocol:
    """Return an engine over a policy, in this process or in workers; raise StepError if it cannot be built.

    If the role `rollout` has workers, each loads the current policy from `folder`; later weights are sent as files in
    `scratch` (None: they never change), the model computes with the options of `training`, and turns end as `chat`
    says.
    """
    if actors is None or not actors.size("rollout"):
        return build(use, policy, account=account)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    remotes = actors.start("rollout", serve, use, str(folder), dtype, training, chat)
    return Replicas(actors, remotes, partial(Files, policy, scratch) if scratch is not None else None)


def load_sampling_policy(
    folder: Path, device: str, actors: Actors | None, chat: Chat, dtype: str = "float32"
) -> Policy:
    """Return the policy for an engine in this process, or without weights if workers sample."""
    elsewhere = actors is not None and actors.size("rollout")
    policy = load_outline(folder, dtype=dtype) if elsewhere else load_policy(folder, device=device, dtype=dtype)
    apply_chat(policy.tokenizer, chat)
    return policy


@contextmanager
def open_engine(
    use: EngineUse,
    policy: Any,
    actors: Actors | None,
    folder: Path,
    account: SpendingAccount | None = None,
    chat: Chat | None = None,
) -> Iterator[EngineProtocol]:
    """Provide an engine over a policy that does not change; its workers are freed at the end of the context."""
    engine = make_engine(use, policy, actors, folder=folder, account=account, chat=chat)
    try:
        yield engine
    finally:
        close = getattr(engine, "close", None)
        if close is not None and actors is not None and actors.size("rollout"):
            close()
