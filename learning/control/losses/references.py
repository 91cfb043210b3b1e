"""Terms that hold a policy near a trained one. A batch is a TensorDict of B steps."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from learning.control.policies.policy import load_control_policy
from schemas.errors import StepError
from schemas.references import ControlPolicyRef


def kl_to_policy(batch: Any, actor: Any, *, policy: ControlPolicyRef) -> Tensor:
    """Mean KL(π‖π_ref) over all actions, π_ref being a trained policy, such as a clone (Tiapkin et al. 2024).

    With `coef` λ and the exact values Q, the best policy is π ∝ π_ref · exp(Q / λ). That of a squashed Gaussian is that
    of the Gaussian.
    """
    reference = _load(Path(policy))
    if not (hasattr(actor, "get_dist_params") and hasattr(reference, "get_dist_params")):
        raise StepError("loss_terms: kl_to_policy needs policies that draw actions; use sac, ppo, mdpo, iql or bc")
    shown = batch.select("observation")
    now = actor.get_dist_params(shown)
    with torch.no_grad():
        kept = reference.get_dist_params(batch.select("observation"))
    if "logits" in now.keys():  # noqa: SIM118 — a TensorDict's `in` is another question
        log_p, log_q = now["logits"].log_softmax(-1), kept["logits"].log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return kl_divergence(Normal(now["loc"], now["scale"]), Normal(kept["loc"], kept["scale"])).sum(-1).mean()


@lru_cache(maxsize=4)
def _load(folder: Path) -> Any:
    # A network is drawn at random before its weights are read. A resumed step, and one whose policy another step of
    # this process has read, must continue with the same random numbers.
    with torch.random.fork_rng(devices=[]):
        return load_control_policy(folder).actor.requires_grad_(False)
