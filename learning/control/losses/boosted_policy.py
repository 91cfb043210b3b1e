"""Proximal policy optimisation whose policy and values are boosted trees (GBRL, Fuhrer et al. 2024).

Shapes: N worlds, S steps of each in a rollout, B steps of a batch, A choices, K = A + 1 outputs.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Categorical

from learning.control.losses.standard import Algorithm, Share, require_choices
from learning.control.networks.boosted_trees import Columns, Tree, TreeEnsemble, fit_tree
from learning.control.networks.build import Networks
from schemas.errors import StepError

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class BoostedLoss(nn.Module):
    """The ensemble with TorchRL's loss, which reads the trees' outputs from the batch in place of observations."""

    def __init__(
        self, actor: Any, choices: int, *, clip_epsilon: float, entropy_coef: float, critic_coef: float
    ) -> None:
        from tensordict.nn import TensorDictModule
        from torchrl.modules import ProbabilisticActor, ValueOperator
        from torchrl.objectives import ClipPPOLoss

        super().__init__()
        self.actor_network = actor
        logits = TensorDictModule(Columns(0, choices), ["outputs"], ["logits"])
        reads_policy = ProbabilisticActor(
            logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
        )
        reads_value = ValueOperator(Columns(choices, choices + 1), in_keys=["outputs"])
        self.clipped = ClipPPOLoss(
            reads_policy,
            reads_value,
            clip_epsilon=clip_epsilon,
            entropy_bonus=True,
            entropy_coeff=entropy_coef,
            critic_coeff=critic_coef,
            loss_critic_type="l2",
            normalize_advantage=True,
        )

    def compute_gradients(self, batch: Any, output_BK: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Return the gradient of each step's own loss with respect to its outputs (B, K), and the terms of the loss."""
        output_BK = output_BK.detach().requires_grad_()
        terms = self.clipped(batch.clone(recurse=False).set("outputs", output_BK))
        wanted = {name: terms[name] for name in ("loss_objective", "loss_critic", "loss_entropy")}
        (gradient_BK,) = torch.autograd.grad(torch.stack([*wanted.values()]).sum(), output_BK)
        # The loss is a mean over the batch; a leaf is the mean over its own steps.
        return gradient_BK * len(output_BK), {name: float(term.detach()) for name, term in wanted.items()}


def add_tree(
    trees: TreeEnsemble, observation: Tensor, gradient: Tensor, depth: int, most_splits: int, rate_K: Any
) -> Tree:
    """Fit one tree to gradients, go a step down it, and return it."""
    tree = fit_tree(observation.double().numpy(), gradient.double().numpy(), depth, most_splits)
    trees.add(tree, np.asarray(rate_K))
    return tree


def add_advantages(batch_NS: Any, trees: TreeEnsemble, gamma: float, lmbda: float) -> Any:
    """Return the steps of a rollout (B,) with their advantages, targets of values and log-probabilities."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    following = batch_NS["next"]
    output, later = trees(batch_NS["observation"]), trees(following["observation"])
    batch_NS["advantage"], batch_NS["value_target"] = generalized_advantage_estimate(
        gamma,
        lmbda,
        output[..., -1:],
        later[..., -1:],
        following["reward"],
        following["done"],
        following["terminated"],
    )
    log_policy = output[..., :-1].log_softmax(-1)
    batch_NS["action_log_prob"] = log_policy.gather(-1, batch_NS["action"][..., None])[..., 0]
    return batch_NS.reshape(-1)


def boosted_ppo(
    networks: Networks,
    *,
    depth: Count = 3,
    most_splits: Count = 16,
    policy_rate: Rate = 0.1,
    value_rate: Rate = 0.05,
    passes: Count = 4,
    tree_batch_size: Count = 128,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    clip_epsilon: Annotated[float, Field(gt=0)] = 0.2,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """PPO of choices with boosted trees; each update adds one, fitted to the loss's gradients (Fuhrer et al. 2024).

    Policy and values have the same trees, and rates of their own. Each of `passes` over a rollout takes its steps in
    batches of `tree_batch_size`, in random order.
    """
    require_choices(networks, "boosted_ppo")
    actor, choices = networks.make_tree_actor(), networks.spaces.actions
    options = {"clip_epsilon": clip_epsilon, "entropy_coef": entropy_coef, "critic_coef": critic_coef}
    loss = BoostedLoss(actor, choices, **options)
    (trees,) = (module for module in actor.modules() if isinstance(module, TreeEnsemble))
    rate_K = np.array([policy_rate] * choices + [value_rate])

    def fit(batch_NS: Any, data: Mapping[str, Tensor] | None, rng: np.random.Generator) -> dict[str, float]:
        if data is not None:
            raise StepError("loss boosted_ppo takes the newest steps alone: remove `data`")
        with torch.no_grad():
            rows = add_advantages(batch_NS, trees, gamma, lmbda)
        terms: dict[str, float] = {}
        for _ in range(passes):
            for place_B in torch.from_numpy(rng.permutation(len(rows))).split(tree_batch_size):
                batch = rows[place_B]
                with torch.no_grad():
                    output_BK = trees(batch["observation"])
                gradient_BK, terms = loss.compute_gradients(batch, output_BK)
                add_tree(trees, batch["observation"], gradient_BK, depth, most_splits, rate_K)
        return {**terms, "trees": float(len(trees))}

    return Algorithm(loss, actor, "make_tree_actor", (), fit_newest=fit)
