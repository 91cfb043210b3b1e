"""Terms of control losses beside TorchRL's own. A batch is a TensorDict of B steps; C critics."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from learning.control.losses.critics import compute_advantage, predict_action_values
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat


def cloning(batch: Any, actor: Any) -> Tensor:
    """Mean negative log-likelihood of the batch's actions, or their mean squared error for a deterministic actor."""
    if hasattr(actor, "get_dist"):
        return -actor.get_dist(batch.select("observation")).log_prob(batch["action"]).mean()
    action = actor(batch.select("observation"))["action"]
    return torch.nn.functional.mse_loss(action, batch["action"])


def cloning_of_data(data_batch: Any, actor: Any) -> Tensor:
    """Return `cloning` of a batch of `data`, beside a loss that is trained on own steps."""
    return cloning(data_batch, actor)


def conservative(batch: Any, loss: Any) -> Tensor:
    """Mean log Σ_a exp Q(s, a) − Q(s, a_data), beside `dqn` on data of others: CQL for choices (Kumar et al. 2020)."""
    shown = batch.select("observation")
    with loss.value_network_params.to_module(loss.value_network):
        loss.value_network(shown)
    values = shown["action_value"]
    return (values.logsumexp(-1) - values.gather(-1, batch["action"][:, None])[:, 0]).mean()


def kl_to_previous(batch: Any, actor: Any, *, t: ScheduledFloat = 1.0) -> Tensor:
    """KL(π‖π_k) / t over all actions, π_k being the policy that collected the rollout (Tomar et al. 2020, eq. 12).

    That of a squashed Gaussian is that of the Gaussian.
    """
    now, before = actor.get_dist_params(batch.select("observation")), batch["previous"]
    if "logits" in before.keys():  # noqa: SIM118 — a TensorDict's `in` is another question
        log_p, log_q = now["logits"].log_softmax(-1), before["logits"].log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean() / t
    apart = kl_divergence(Normal(now["loc"], now["scale"]), Normal(before["loc"], before["scale"]))
    return apart.sum(-1).mean() / t


def mirror_descent(batch: Any, loss: Any, actor: Any, *, t: ScheduledFloat = 1.0) -> Tensor:
    """Mean (log π(a|s) − log π_k(a|s)) / t − min Q(s, a), a drawn from π (Tomar et al. 2020, eq. 16).

    π_k is the previous policy of `mdpo_off`. With a uniform one it is the actor's loss of SAC at temperature 1/t.
    """
    if not hasattr(loss, "previous"):
        raise StepError("loss_terms: mirror_descent needs the previous policy that `loss: mdpo_off` keeps")
    shown = batch.select("observation")
    policy = actor.get_dist(shown)
    action = policy.rsample()
    log_ratio = policy.log_prob(action) - loss.previous.get_dist(shown).log_prob(action)
    return (log_ratio / t - predict_action_values(loss, batch, action).min(0).values).mean()


def advantage_weighted(
    batch: Any,
    loss: Any,
    actor: Any,
    *,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    max_weight: Annotated[float, Field(gt=0)] = 100.0,
) -> Tensor:
    """Cloning weighted by exp(A / temperature), in place of `loss_actor` of sac (AWAC, Nair et al. 2020, eq. 13).

    A is min Q(s, a) of the batch's action minus that of an action that the policy draws; weights have a largest value.
    """
    policy = actor.get_dist(batch.select("observation"))
    with torch.no_grad():
        drawn, taken = policy.sample(), batch["action"]
        of_taken, of_drawn = (predict_action_values(loss, batch, one).min(0).values for one in (taken, drawn))
        weight = ((of_taken - of_drawn) / temperature).exp().clamp(max=max_weight)
    return -(weight * policy.log_prob(batch["action"])).mean()


def f_dvl(
    batch: Any,
    loss: Any,
    *,
    divergence: Literal["chi2", "tv"] = "chi2",
    weight: Annotated[float, Field(gt=0.5, lt=1)] = 0.8,
) -> Tensor:
    """Value loss of f-DVL in place of `loss_value` of iql (Sikchi et al. 2023): λ max(f*(x), 0) − (1 − λ) x.

    x is Q − V; f*(x) is x + x²/4 for Pearson's χ² and x for total variation.
    """
    x = compute_advantage(batch, loss)
    conjugate = x + x.square() / 4 if divergence == "chi2" else x
    return (weight * conjugate.clamp(min=0) - (1 - weight) * x).mean()


def gumbel(
    batch: Any,
    loss: Any,
    *,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    clip: Annotated[float, Field(gt=0)] | None = None,
) -> Tensor:
    """Value loss of extreme Q-learning in place of `loss_value` of iql (Garg et al. 2023): e^x − x − 1.

    x is (Q − V) / β. `clip` bounds x from above: the exponential overflows float32 at 88.
    """
    x = compute_advantage(batch, loss) / temperature
    x = x if clip is None else x.clamp(max=clip)
    return (x.exp() - x - 1).mean()
