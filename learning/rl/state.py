"""What an RL loop holds while it runs, and how it is put aside and taken up again, to the same bits."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from learning.algorithm.composition import Algorithm
from learning.models.checkpoint import (
    below,
    like_trained,
    load_latest,
    load_optimizer_state,
    load_weights,
    optimizer_state,
    prefixed,
    save_checkpoint,
    trained_weights,
)
from learning.models.policy import Policy
from learning.models.sharded_model import Trained
from learning.parallel.group import Group
from learning.parallel.random_states import put_random_states_back, random_states
from learning.rl.auxiliaries import Auxiliaries
from learning.rl.collection import Collecting
from learning.rl.curves import Curves
from learning.rl.references import References
from learning.rl.watchdogs import Watchdogs
from learning.samples.engine_protocol import EngineProtocol
from learning.samples.history import History
from learning.sampling.trajectories import Parts, Trajectories
from schemas.errors import StepError

PLAIN = ("states", "samples", "parts", "rate", "stopped", "sampled")


@dataclass
class TrainingState:
    """Everything stateful of a stage."""

    policy: Policy
    trained: Trained
    """The policy in the hands of the group that trains it."""
    acting: Policy
    """The policy that samples: the same, or a whole copy where each rank holds a part of what is trained."""
    optimizer: torch.optim.Optimizer
    engine: EngineProtocol
    algorithm: Algorithm
    collecting: Collecting
    references: References
    beside: Auxiliaries
    rows: list[dict[str, Any]]
    held_out_rows: list[dict[str, Any]]
    trajectories: Trajectories
    curves: Curves
    watchdogs: Watchdogs
    checkpoints: Path
    history: History = field(default_factory=History)
    states: dict[str, Any] = field(default_factory=dict)
    """Memory of the slots' functions, by slot."""
    samples: dict[str, Any] = field(default_factory=dict)
    parts: Parts = field(default_factory=list)
    sampled: int = 0
    """Tokens sampled so far."""
    rate: float = 1.0
    """Factor that steps back have left on the learning rate."""
    stopped: str | None = None
    """Why the stage ended early."""

    @property
    def group(self) -> Group:
        """Who trains."""
        return self.trained.group

    @property
    def memories(self) -> dict[str, Any]:
        """Parts that say themselves what a checkpoint must hold."""
        parts = {"history": self.history, "curves": self.curves, "watchdogs": self.watchdogs}
        return parts | ({"engine": self.engine} if hasattr(self.engine, "to_json") else {})

    def close(self) -> None:
        """End what goes on beside the training loop."""
        if hasattr(self.engine, "close"):
            self.engine.close()


def save(training: TrainingState, step: int) -> None:
    """Leave a checkpoint from which a killed step continues; it is also the one to step back to while all is well."""
    training.parts.append((step, training.trajectories.put_aside(step) if training.group.main else ""))
    if training.watchdogs.is_good:
        save_good(training, step)
    rng_tensors, rng_rest = random_states(training.group)
    plain = {name: getattr(training, name) for name in PLAIN}
    told = {name: part.to_json() for name, part in training.memories.items()}
    tensors, rest = _trained(training)
    tensors |= rng_tensors | prefixed("references", training.references.tensors())
    rest |= {**rng_rest, "plain": plain, "memories": told}
    save_checkpoint(training.checkpoints, step, tensors, rest, training.group)


def resume(training: TrainingState) -> int:
    """The iteration to start at: 0, or that of the latest checkpoint, with everything put back."""
    like = like_trained(trained_weights(training.policy.model), training.optimizer)
    found = load_latest(
        training.checkpoints, like=like, group=training.group,
        refuse=lambda state: training.trajectories.damaged(state["plain"]["parts"]),
    )  # fmt: skip
    if found is None:
        save_good(training, 0)
        return 0
    step, tensors, state = found
    _put_back(training, tensors, state)
    training.references.load(below("references", tensors))
    put_random_states_back(tensors, state, training.group)
    for name in PLAIN:
        setattr(training, name, state["plain"][name])
    for name, part in training.memories.items():
        part.load(state["memories"][name])
    sync(training, step)
    return step


def sync(training: TrainingState, version: int) -> None:
    """Tell who samples that the weights have changed; every rank takes part."""
    if training.acting is not training.policy:
        training.trained.copy_to(training.acting.model)
    training.engine.sync(version)


def save_good(training: TrainingState, step: int) -> None:
    """Keep the weights as ones to step back to, where some watch may ask for that."""
    if any(watch.action != "warn" for watch in training.watchdogs.watches):
        tensors, rest = _trained(training)
        save_checkpoint(training.checkpoints / "good", step, tensors, rest, training.group)


def step_back(training: TrainingState, step: int) -> int:
    """Put back the weights and moments of the last good checkpoint up to `step`; returns the iteration they are of.

    A killed run may have left one that lies ahead of where it was taken up.
    """
    like = like_trained(trained_weights(training.policy.model), training.optimizer)
    found = load_latest(training.checkpoints / "good", upto=step, like=like, group=training.group)
    if found is None:
        raise StepError("watch: no good checkpoint to step back to is left; delete the checkpoints and run again")
    _put_back(training, found[1], found[2])
    return found[0]


def _trained(training: TrainingState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and moments of everything that is trained."""
    moments, rest = optimizer_state(training.optimizer)
    tensors = prefixed("model", trained_weights(training.policy.model)) | prefixed("optimizer", moments)
    return tensors | prefixed("beside", training.beside.tensors()), {
        "optimizer": rest,
        "beside": training.beside.state(),
    }


def _put_back(training: TrainingState, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    load_weights(trained_weights(training.policy.model), below("model", tensors))
    load_optimizer_state(training.optimizer, below("optimizer", tensors), state["optimizer"])
    training.beside.load(below("beside", tensors), state["beside"])
