"""Workers of a training that streams join: actors step worlds, a policy worker acts for all, the trainer learns.

Observations go from the actors to the policy worker and actions back, steps to the trainer, weights from it to the
policy worker (SRL, Mei et al. 2023). The trainer is the step's own process. Shapes: N worlds, O numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learning.control.buffers.rollouts import add_previous_policy
from learning.control.networks.build import Networks
from learning.control.policies.policy import act
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.worlds import Steps, Worlds
from learning.lookup import bind
from learning.parallel.actors import Actors, Remote
from schemas.base import JsonObject
from schemas.control import NetworkSettings, WorldUse
from schemas.errors import StepError

ACTOR, POLICY = "actor", "policy"
"""Roles of `resources`."""


class WorldsActor:
    """Some of a training's worlds, without networks."""

    def __init__(self, env: WorldUse, inputs: Mapping[str, Path], seed: int) -> None:
        self.make, self.seed = bind(env, "env", inputs), seed

    def begin(self, first: int, count: int) -> tuple[Spaces, np.ndarray]:
        """Start the worlds from number `first` on; return their spaces and observations (N, O)."""
        self.worlds = Worlds(self.make, count, self.seed, "control", first=first)
        return self.worlds.spaces, self.worlds.observation

    def step(self, action_N: np.ndarray) -> tuple[Steps, np.ndarray]:
        """Act in every world; return what happened, and the observations to act on."""
        steps = self.worlds.step(action_N)
        return steps, self.worlds.observation

    def save(self) -> tuple[dict[str, torch.Tensor], JsonObject]:
        """Return what `restore` needs."""
        return self.worlds.save()

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> np.ndarray:
        """Bring the worlds into a saved state and return their observations."""
        self.worlds.restore(tensors, state)
        return self.worlds.observation

    def close(self) -> None:
        """Close the worlds."""
        if hasattr(self, "worlds"):
            self.worlds.close()


class PolicyWorker:
    """A copy of the trained policy's actor, which acts for all actors at once."""

    def __init__(self, form: str, spaces: Spaces, settings: NetworkSettings) -> None:
        # In a thread of the trainer's process the first weights must not use up its random numbers.
        with torch.random.fork_rng(devices=[]):
            self.actor = getattr(Networks(spaces, settings), form)()

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take new weights."""
        self.actor.load_state_dict(dict(tensors), strict=False)

    def act(self, observation_NO: np.ndarray, random_state: torch.Tensor | None) -> tuple[np.ndarray, torch.Tensor]:
        """Return drawn actions, and the state of the random numbers after them; given a state, it draws from that."""
        if random_state is not None:
            torch.set_rng_state(random_state)
        action_N = act(self.actor, observation_NO, explore=True)
        return action_N, torch.get_rng_state()

    def describe(self, batch_NS: Any) -> Any:
        """Return a rollout with what the present weights make of its actions."""
        with torch.no_grad():
            add_previous_policy(self.actor, batch_NS)
        return batch_NS


class ActorStream:
    """The worlds of all actors, as the trainer sees them: like `Worlds` in its own process."""

    def __init__(self, remotes: Sequence[Remote], count: int) -> None:
        """Share out `count` worlds among the actors. Raise StepError if there are fewer worlds than actors."""
        if count < len(remotes):
            raise StepError(f"resources.actor: {len(remotes)} workers share {count} worlds; raise `num_envs`")
        self.remotes = remotes
        self.places = np.array_split(np.arange(count), len(remotes))
        begun = [
            remote.call("begin", int(places[0]), len(places))
            for remote, places in zip(remotes, self.places, strict=True)
        ]
        answers = [one.result() for one in begun]
        self.spaces: Spaces = answers[0][0]
        self.observation = np.concatenate([observation for _, observation in answers])

    def step(self, action: np.ndarray) -> Steps:
        """Act in all worlds at the same time and return what happened, in the order of the worlds."""
        sent = [remote.call("step", action[places]) for remote, places in zip(self.remotes, self.places, strict=True)]
        answers = [one.result() for one in sent]
        self.observation = np.concatenate([observation for _, observation in answers])
        parts = [steps for steps, _ in answers]
        columns = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
        return Steps(**joined, ended=tuple(one for part in parts for one in part.ended))

    def save(self) -> tuple[dict[str, torch.Tensor], JsonObject]:
        """Return the states of all worlds, as `Worlds.save` does."""
        tensors: dict[str, torch.Tensor] = {}
        episodes: list[int] = []
        for places, (given, state) in zip(
            self.places, [remote.call("save").result() for remote in self.remotes], strict=True
        ):
            episodes += state["episodes"]
            for name, tensor in given.items():
                kind, _, number = name.partition(".")
                tensors[f"{kind}.{int(number) + int(places[0])}" if number else f"{name}.{int(places[0])}"] = tensor
        shown = [tensors.pop(f"observation.{int(places[0])}") for places in self.places]
        return tensors | {"observation": torch.cat(shown)}, {"episodes": episodes}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Bring all worlds into a saved state, also of a training with other workers or none."""
        sent = []
        for remote, places in zip(self.remotes, self.places, strict=True):
            own = {
                f"actions.{n}": tensors[f"actions.{place}"]
                for n, place in enumerate(places.tolist())
                if f"actions.{place}" in tensors
            }
            own["observation"] = tensors["observation"][torch.from_numpy(places)]
            sent.append(remote.call("restore", own, {"episodes": [state["episodes"][place] for place in places]}))
        self.observation = np.concatenate([one.result() for one in sent])

    def close(self) -> None:
        """Close the worlds."""
        for one in [remote.call("close") for remote in self.remotes if remote.alive()]:
            one.result()


class PolicyStream:
    """The policy worker, as the trainer sees it: it gets new weights before it acts after a change of them."""

    def __init__(self, remote: Remote, actor: Any) -> None:
        self.remote, self.actor = remote, actor
        self.sent: int | None = None
        self.publish(0)

    def publish(self, version: int) -> None:
        """Send the trained weights, and wait until the worker has them."""
        self.remote.call("load", copy_weights(self.actor)).result()
        self.sent = version

    def act(self, observation_NO: np.ndarray, version: int) -> np.ndarray:
        """Return actions drawn with the weights of a version from the trainer's own random numbers."""
        if version != self.sent:
            self.publish(version)
        action_N, random_state = self.remote.call("act", observation_NO, torch.get_rng_state()).result()
        torch.set_rng_state(random_state)
        return action_N


def copy_weights(actor: Any) -> dict[str, torch.Tensor]:
    """Return a copy of an actor's tensors."""
    return {name: t.detach().clone() for name, t in actor.state_dict().items() if isinstance(t, torch.Tensor)}


def start_actors(
    actors: Actors | None, env: WorldUse, inputs: Mapping[str, Path], seed: int, count: int
) -> ActorStream | None:
    """Return the stream of the step's actors; None where the worlds are in the trainer's process."""
    if actors is None or not actors.size(ACTOR):
        return None
    of_env = {port: folder for port, folder in inputs.items() if port.startswith("env")}
    return ActorStream(actors.start(ACTOR, WorldsActor, env, of_env, seed), count)


def start_policy(
    actors: Actors | None, form: str, spaces: Spaces, settings: NetworkSettings, actor: Any
) -> PolicyStream | None:
    """Return the stream of the step's policy worker; None where the trainer's process acts itself."""
    if actors is None or not actors.size(POLICY):
        return None
    (remote,) = actors.start(POLICY, PolicyWorker, form, spaces, settings)
    return PolicyStream(remote, actor)
