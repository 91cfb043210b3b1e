"""Policies conditioned on a summary of the episode, and the summary that preferences ask for (OPPO, Kang et al. 2023).

No reward is read. Shapes: B windows or pairs, K steps of a window, Z numbers of a summary, O of an observation.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.buffers.buffer import Buffer
from learning.control.losses.decision_transformer import Episodes, find_episodes
from learning.control.losses.standard import Algorithm
from learning.control.networks.build import Networks
from learning.control.networks.context_actor import ContextActor
from learning.lookup import Inner
from schemas.control import RaterUse
from schemas.errors import StepError

if TYPE_CHECKING:
    RaterFunction = Inner
else:
    RaterFunction = RaterUse
"""Option of a slot's function: what rates an episode, which it gets bound."""

Weight = Annotated[float, Field(ge=0)]


def compare(anchor_Z: Tensor, chosen_BZ: Tensor, rejected_BZ: Tensor, margin: float) -> Tensor:
    """Return the mean of max(0, |z* − z⁺| − |z* − z⁻| + margin): how far z* is from being nearer to what is chosen."""
    near_B, far_B = ((anchor_Z - summary_BZ).norm(dim=-1) for summary_BZ in (chosen_BZ, rejected_BZ))
    return (near_B - far_B + margin).clamp(min=0).mean()


class PreferredContext(nn.Module):
    """Losses of the policy with its summaries, of summaries beside the preferred one, and of the preferred one."""

    def __init__(self, actor: ContextActor, margin: float, preference_weight: float, norm_weight: float) -> None:
        super().__init__()
        self.actor_network = actor
        self.margin, self.preference_weight, self.norm_weight = margin, preference_weight, norm_weight

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return `loss_action`, `loss_summary`, `loss_norm` and `loss_preferred`.

        `loss_summary` moves the summaries of pairs with the preferred one held; `loss_preferred` moves that one alone.
        """
        actor, window = self.actor_network, batch["window"]
        summary_BZ = actor.summarise(window)
        shown = actor.condition(window["observation"], summary_BZ[:, None])
        likelihood_BK = actor.policy.get_dist(shown).log_prob(window["action"])
        chosen_BZ, rejected_BZ = (actor.summarise(batch[name]) for name in ("chosen", "rejected"))
        held = compare(actor.preferred.detach(), chosen_BZ, rejected_BZ, self.margin)
        moved = compare(actor.preferred, chosen_BZ.detach(), rejected_BZ.detach(), self.margin)
        lengths = torch.cat([one.norm(dim=-1) for one in (summary_BZ, chosen_BZ, rejected_BZ)])
        return {
            "loss_action": -likelihood_BK[window["mask"]].mean(),
            "loss_summary": self.preference_weight * held,
            "loss_norm": self.norm_weight * (lengths - 1).square().mean(),
            "loss_preferred": moved,
        }


def cut_windows(episodes: Episodes, start_B: Tensor, length: int) -> Any:
    """Return windows (B, K) from given steps on, with a `mask` of what is still in the episode."""
    from tensordict import TensorDict

    end_B1 = episodes.end_C[start_B][:, None]
    place_BK = start_B[:, None] + torch.arange(length)
    inside_BK = place_BK.minimum(end_B1)
    drawn = {name: episodes.columns[name][inside_BK] for name in ("observation", "action")}
    return TensorDict({**drawn, "mask": place_BK <= end_B1}, place_BK.shape)


def rate_pairs(episodes: Episodes, rater: Any, pairs: int) -> tuple[Tensor, Tensor]:
    """Return the first steps of the chosen and of the rejected episode of each pair; pairs rated alike are left out.

    The pairs depend on the data and their number alone, so that a stage that is continued has the same.
    """
    start_E = (episodes.step_C == 0).nonzero()[:, 0]
    end_E = episodes.end_C[start_E] + 1
    observation = episodes.columns["observation"].numpy()
    rating_E = np.array([rater(observation_KO=observation[a:b]) for a, b in zip(start_E, end_E, strict=True)])
    pair_P2 = np.random.default_rng([len(start_E), pairs]).integers(len(start_E), size=(pairs, 2))
    rating_P2 = rating_E[pair_P2]
    differs_P = rating_P2[:, 0] != rating_P2[:, 1]
    if not differs_P.any():
        raise StepError("loss preferred_context: the rater rates both episodes of every pair alike; give it other data")
    order_P2 = np.argsort(-rating_P2[differs_P], axis=1)
    chosen_P, rejected_P = np.take_along_axis(pair_P2[differs_P], order_P2, axis=1).T
    return start_E[torch.from_numpy(chosen_P)], start_E[torch.from_numpy(rejected_P)]


def preferred_context(
    networks: Networks,
    *,
    rater: RaterFunction,
    pairs: Annotated[int, Field(ge=1)] = 100,
    margin: Weight = 1.0,
    preference_weight: Weight = 0.1,
    norm_weight: Weight = 0.1,
) -> Algorithm:
    """Offline learning from preferences, without rewards or a model of them (OPPO, Kang et al. 2023).

    The policy predicts the data's actions given a summary of the window of `networks: {context: 20}` steps. `pairs`
    pairs of episodes are rated; a preferred summary z* is drawn to those of chosen episodes, and these are drawn nearer
    to z* than those of rejected ones. The policy acts with z*.
    """
    actor = networks.make_context_actor()
    loss = PreferredContext(actor, margin, preference_weight, norm_weight)
    known: list[tuple[Episodes, Tensor, Tensor]] = []

    def draw(parts: Sequence[Buffer], count: int) -> Any:
        from tensordict import TensorDict

        if not known:
            (data,) = parts
            episodes = find_episodes(data.save())
            known.append((episodes, *rate_pairs(episodes, rater, pairs)))
        episodes, chosen_P, rejected_P = known[0]
        length, pair_B = networks.settings.context, torch.randint(len(chosen_P), (count,))
        starts = {"window": torch.randint(len(episodes.step_C), (count,))}
        starts |= {"chosen": chosen_P[pair_B], "rejected": rejected_P[pair_B]}
        return TensorDict({name: cut_windows(episodes, start_B, length) for name, start_B in starts.items()}, [count])

    terms = ("loss_action", "loss_summary", "loss_norm", "loss_preferred")
    return Algorithm(loss, actor, "make_context_actor", terms, draw=draw, is_offline=True)
