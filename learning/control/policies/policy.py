"""Control policies: an actor with the networks that were trained with it, in safetensors, and acting with it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from schemas.control import NetworkSettings
from schemas.errors import StepError

CONFIG, ACTOR, NETWORKS = "config.json", "actor.safetensors", "networks.safetensors"


@dataclass(frozen=True)
class ControlPolicy:
    """An actor for worlds with these spaces."""

    spaces: Spaces
    settings: NetworkSettings
    actor_form: str
    """Function of `Networks` that makes the actor."""
    actor: Any

    def act(self, observation_NO: np.ndarray, *, explore: bool) -> np.ndarray:
        """Return actions: drawn from the policy's distribution if `explore`, else its likeliest or best ones."""
        return act(self.actor, observation_NO, explore=explore)

    def save(self, folder: Path, networks: Mapping[str, torch.Tensor]) -> None:
        """Write the policy, and the tensors of all trained networks, from which training can go on."""
        config = {
            "spaces": self.spaces.dump(),
            "networks": self.settings.model_dump(),
            "actor": self.actor_form,
        }
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        save_file(_copy(self.actor.state_dict()), folder / ACTOR)
        save_file(_copy(networks), folder / NETWORKS)


def _copy(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: t.detach().clone().contiguous() for name, t in tensors.items() if isinstance(t, torch.Tensor)}


def act(actor: Any, observation_NO: np.ndarray, *, explore: bool) -> np.ndarray:
    """Return the actions of an actor: drawn from its distribution if `explore`, else its likeliest or best ones."""
    from tensordict import TensorDict
    from tensordict.nn import InteractionType, set_interaction_type

    batch = TensorDict({"observation": torch.from_numpy(observation_NO)}, [len(observation_NO)])
    how = InteractionType.RANDOM if explore else InteractionType.DETERMINISTIC
    with torch.no_grad(), set_interaction_type(how):
        return actor(batch)["action"].numpy()


def load_control_policy(folder: Path) -> ControlPolicy:
    """Return the policy in a folder. Raise StepError if it is none, or damaged."""
    try:
        config = json.loads((folder / CONFIG).read_text())
        spaces, settings = Spaces.load(config["spaces"]), NetworkSettings.model_validate(config["networks"])
        form = config["actor"]
        if not (isinstance(form, str) and form.startswith("make_") and hasattr(Networks, form)):
            raise ValueError(f"no actor {form!r}")
        actor = getattr(Networks(spaces, settings), form)()
        actor.load_state_dict(load_file(folder / ACTOR), strict=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        message = str(error).partition("\n")[0]
        raise StepError(f"control_policy: {folder.name} cannot be read: {type(error).__name__}: {message}") from error
    return ControlPolicy(spaces, settings, form, actor)


def load_networks(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all networks that were trained with a policy."""
    return load_file(folder / NETWORKS)
