"""Loss of the decision transformer: the data's actions, given the returns that followed them (Chen et al. 2021).

Shapes: C kept steps, B windows, K steps of a window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from learning.control.buffers.buffer import Buffer
from learning.control.losses.standard import Algorithm
from learning.control.networks.build import Networks
from learning.control.networks.return_conditioned import ReturnConditioned


@dataclass(frozen=True)
class Episodes:
    """Kept steps with their numbers in their episodes, the places of these episodes' ends, and their returns to go."""

    columns: dict[str, Tensor]
    step_C: Tensor
    end_C: Tensor
    return_C: Tensor

    def draw(self, count: int, length: int) -> Any:
        """Return windows (B, K) that begin at steps drawn evenly, with a `mask` of what is still in the episode."""
        from tensordict import TensorDict

        place_BK = torch.randint(len(self.step_C), (count, 1)) + torch.arange(length)
        mask_BK = place_BK <= self.end_C[place_BK[:, :1]]
        inside_BK = place_BK.minimum(self.end_C[place_BK[:, :1]])
        drawn = {name: self.columns[name][inside_BK] for name in ("observation", "action")}
        drawn |= {"return_to_go": self.return_C[inside_BK], "step": self.step_C[inside_BK], "mask": mask_BK}
        return TensorDict(drawn, [count, length])


def find_episodes(columns: dict[str, Tensor]) -> Episodes:
    """Return the episodes of transitions in the order in which they were written, each with an end."""
    is_end_C = (columns["terminated"] | columns["truncated"])[:, 0]
    end = is_end_C.nonzero()[:, 0]
    length = end.diff(prepend=end.new_tensor([-1]))
    end_C, start_C = end.repeat_interleave(length), (end + 1 - length).repeat_interleave(length)
    step_C = torch.arange(len(is_end_C)) - start_C
    earned_C = columns["reward"][:, 0].double().cumsum(0)
    return_C = earned_C[end_C] - earned_C + columns["reward"][:, 0]
    return Episodes(columns, step_C, end_C, return_C.float())


class ActionPrediction(nn.Module):
    """Mean loss of the data's actions over the steps of windows: squared errors, or −log p of choices."""

    def __init__(self, actor: ReturnConditioned) -> None:
        super().__init__()
        self.actor_network = actor

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return the term `loss_action`."""
        actor = self.actor_network
        encoded = actor.encode_actions(batch["action"])
        made = actor(batch["observation"], encoded, batch["return_to_go"], batch["step"])
        mask = batch["mask"]
        if actor.spaces.is_discrete:
            return {"loss_action": cross_entropy(made[mask], batch["action"][mask])}
        return {"loss_action": (made[mask] - encoded[mask]).square().mean()}


def decision_transformer(networks: Networks, *, target_return: float | None = None) -> Algorithm:
    """Decision transformer: predicts the data's actions from the returns that followed (Chen et al. 2021).

    It acts for `target_return`, by default the highest return of an episode of the data. `networks` has one size of
    hidden layers, `context` steps that it looks back on, and `longest_episode`.
    """
    actor = networks.make_return_conditioned_actor()
    loss = ActionPrediction(actor)
    known: list[Episodes] = []

    def draw(parts: Sequence[Buffer], count: int) -> Any:
        if not known:
            (data,) = parts
            known.append(find_episodes(data.save()))
            (episodes,) = known
            best = float(episodes.return_C[episodes.step_C == 0].max())
            actor.fit_scales(
                episodes.columns["observation"], episodes.return_C, best if target_return is None else target_return
            )
        return known[0].draw(count, networks.settings.context)

    return Algorithm(loss, actor, "make_return_conditioned_actor", ("loss_action",), draw=draw, is_offline=True)
