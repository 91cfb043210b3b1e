"""Inverse soft Q-learning of several agents with critics that are marginal over the others (MAMQL, Haynam et al. 2025).

No reward is read. Shapes: B steps, G agents, A choices of each; a joint critic's values have an axis of each agent.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.buffers.buffer import Buffer
from learning.control.losses.standard import Algorithm, Share
from learning.control.losses.team_losses import require_team
from learning.control.networks.build import Networks
from learning.control.policies.policy import load_control_policy, load_networks
from learning.control.stepping.transitions import read_transitions
from schemas.errors import StepError

FILE = "rewards.json"
LARGEST = 4096
"""Most values of a joint critic for an observation, A to the power of G."""
Positive = Annotated[float, Field(gt=0)]
Others = Literal["policy", "best"]


def marginalise(joint_BAA: Tensor, policy_BGA: Tensor, agent: int) -> Tensor:
    """Return Σ over the others' choices of their probabilities times an agent's joint values: (B, A)."""
    value = joint_BAA.movedim(1 + agent, 1)
    for other in reversed([n for n in range(policy_BGA.shape[1]) if n != agent]):
        value = (value * policy_BGA[:, other].reshape(len(value), *[1] * (value.dim() - 2), -1)).sum(-1)
    return value


def take_best(joint_BAA: Tensor, agent: int) -> Tensor:
    """Return an agent's joint values if the others chose what is best for it: (B, A)."""
    return joint_BAA.movedim(1 + agent, 1).flatten(2).amax(-1)


class MarginalCritics(nn.Module):
    """A joint critic and a policy of each agent; the policies follow the critics' marginal values."""

    def __init__(
        self, actor: Any, critic: Any, *, gamma: float, temperature: float, alpha: float, others: Others
    ) -> None:
        super().__init__()
        self.actor_network, self.critic_network = actor, critic
        self.gamma, self.temperature, self.alpha, self.others = gamma, temperature, alpha, others

    def compute_values(self, batch: Any) -> Tensor:
        """Return values of each agent's own choices (B, G, A)."""
        joint = self.critic_network(batch.select("observation"))["joint_value"]
        with torch.no_grad():
            policy_BGA = self.actor_network.get_dist(batch.select("observation")).probs
        agents = range(joint.shape[1])
        if self.others == "best":
            return torch.stack([take_best(joint[:, n], n) for n in agents], 1)
        return torch.stack([marginalise(joint[:, n], policy_BGA, n) for n in agents], 1)

    def recover(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards Q̄(s, a) − γ V(s') and differences V(s) − γ V(s') of every agent (B, G), and own values.

        V is the soft value of an agent's own choices (B, G, A); it is 0 after the end.
        """
        own_BGA, after_BGA = self.compute_values(batch), self.compute_values(batch["next"])
        taken_BG = own_BGA.gather(-1, batch["action"][..., None])[..., 0]
        now_BG, later_BG = (self.temperature * (v / self.temperature).logsumexp(-1) for v in (own_BGA, after_BGA))
        continued_BG = self.gamma * ~batch["next", "terminated"] * later_BG
        return taken_BG - continued_BG, now_BG - continued_BG, own_BGA

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return `loss_critic`: −mean of r − r²/4α plus mean of V(s) − γ V(s'), summed over agents; and `loss_actor`.

        `loss_actor` is the cross-entropy of the policies from exp(own values / temperature), which is held.
        """
        reward_BG, difference_BG, own_BGA = self.recover(batch)
        gained = reward_BG - reward_BG.square() / (4 * self.alpha)
        wanted_BGA = (own_BGA.detach() / self.temperature).softmax(-1)
        log_policy_BGA = self.actor_network.get_dist(batch.select("observation")).logits.log_softmax(-1)
        return {
            "loss_critic": (difference_BG - gained).mean(0).sum(),
            "loss_actor": -(wanted_BGA * log_policy_BGA).sum(-1).mean(0).sum(),
        }


def mamql(
    networks: Networks,
    *,
    gamma: Share = 0.95,
    temperature: Positive = 1.0,
    alpha: Positive = 10.0,
    others: Others = "policy",
) -> Algorithm:
    """Inverse soft Q-learning of a team from demonstrations, without rewards (MAMQL, Haynam et al. 2025).

    Every agent has a critic of all agents' choices, its marginal over the others' present policies, and a policy that
    follows exp(marginal / temperature). `others: best` takes the others' best choices in place of their policies.
    """
    require_team(networks, "mamql")
    spaces = networks.spaces
    if spaces.actions**spaces.agents > LARGEST:
        raise StepError(
            f"loss mamql: joint critics of {spaces.agents} agents with {spaces.actions} choices are too large; at most "
            f"{LARGEST} values: wrap the world, or use qmix"
        )
    actor, critic = networks.make_team_actor(), networks.make_joint_critic()
    loss = MarginalCritics(actor, critic, gamma=gamma, temperature=temperature, alpha=alpha, others=others)
    terms = ("loss_critic", "loss_actor")
    return Algorithm(loss, actor, "make_team_actor", terms, is_for_teams=True, is_offline=True)


def recover_rewards(
    context: Any, *, gamma: Share = 0.95, temperature: Positive = 1.0, others: Others = "policy", ridge: Positive = 1.0
) -> dict[str, float]:
    """Fit rewards that are linear in a step to those of the critics of `policy`, on the steps of `transitions`.

    The features of an agent's step are a constant, what it observes and how that changes; their weights for every agent
    are written into `rewards.json`. Return the correlation of the fitted rewards' mean over agents with the world's,
    which the training did not see, and the share of the critics' variance explained.
    """
    from tensordict import TensorDict

    policy, data = load_control_policy(context.input("policy")), read_transitions(context.input("transitions"))
    policy.spaces.require(data.spaces, "transitions")
    made = mamql(Networks(policy.spaces, policy.settings), gamma=gamma, temperature=temperature, others=others)
    made.loss.load_state_dict(load_networks(context.input("policy")))
    buffer = Buffer(len(data), data.spaces)
    buffer.add(data)
    batch: TensorDict = buffer.make_batch(torch.arange(len(data)))
    with torch.no_grad():
        reward_BG = made.loss.recover(batch)[0].double().numpy()
    agents = policy.spaces.agents
    before, after = (shown.reshape(len(data), agents, -1) for shown in (data.observation, data.next_observation))
    parts = [[before[:, n], after[:, n] - before[:, n]] for n in range(agents)]
    fits = [_fit(parts[n], reward_BG[:, n], ridge) for n in range(agents)]
    weights = {"weights": [weight_D.tolist() for weight_D, _ in fits]}
    (context.output("result") / FILE).write_text(json.dumps(weights) + "\n")
    fitted_BG = np.stack([fitted_B for _, fitted_B in fits], 1)
    explained = 1 - (reward_BG - fitted_BG).var() / max(reward_BG.var(), 1e-12)
    together = np.corrcoef(fitted_BG.mean(1), data.reward)[0, 1] if data.reward.std() and fitted_BG.std() else 0.0
    return {"steps": len(data), "correlation": float(together), "explained": float(explained)}


def _fit(parts: Sequence[np.ndarray], target_B: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (D,) and predictions (B,) of a ridge regression with a constant."""
    features = np.concatenate([np.ones((len(target_B), 1)), *parts], axis=1).astype(float)
    gram = features.T @ features + ridge * np.eye(features.shape[1])
    weight_D = np.linalg.solve(gram, features.T @ target_B)
    return weight_D, features @ weight_D
