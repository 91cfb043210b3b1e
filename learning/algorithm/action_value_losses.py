"""Losses of Q and V of tokens on episodes that others played, at every token of the model's turns (T,).

The state is what stands before a token, the token is the action; after the last token of a turn comes the state after
the environment's answer. Targets have no gradient. Shapes: T tokens, H heads of Q, V vocabulary.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from learning.batch.columns import locate_in_path

Share = Annotated[float, Field(ge=0, le=1)]


def expectile(q_target_T: Tensor, v_T: Tensor, *, tau: Annotated[float, Field(gt=0, lt=1)] = 0.7) -> Tensor:
    """|τ − 1(Q < V)|·(Q − V)²/2: V is an upper expectile of Q over the actions in the data (IQL, 2022).

    Q is that of the slow copy, the least of its heads, at the tokens of the data: no other action is asked for.
    """
    error_T = q_target_T - v_T
    weight_T = error_T.new_full((), tau).where(error_T.detach() >= 0, 1 - tau)
    return weight_T * error_T**2 / 2


def bellman(q_TH: Tensor, reward_T: Tensor, v_next_T: Tensor, *, gamma: Share = 0.99) -> Tensor:
    """(r + γ·V(s') − Q)²/2, summed over the heads (ILQL, Snell et al. 2023); V is 0 after the end."""
    return _regress(q_TH, reward_T + gamma * v_next_T)


def monte_carlo(q_TH: Tensor, reward_T: Tensor, path_T: Tensor, *, gamma: Share = 0.99) -> Tensor:
    """(G − Q)²/2 with the discounted sum G of the rewards from this token on: Q of the policy that played the data."""
    return _regress(q_TH, discount_rewards(reward_T, path_T, gamma))


def greedy_bellman(q_TH: Tensor, reward_T: Tensor, q_next_max_T: Tensor, *, gamma: Share = 1.0) -> Tensor:
    """(r + γ·max Q(s', ·) − Q)²/2 with Q of the slow copy: Q-learning, which trusts actions outside the data."""
    return _regress(q_TH, reward_T + gamma * q_next_max_T)


def reference_bellman(q_TH: Tensor, reward_T: Tensor, q_next_ref_T: Tensor, *, gamma: Share = 1.0) -> Tensor:
    """(r + γ·Q(s', a) − Q)²/2 with the reference's likeliest token a in s' (conservative operator of B-Coder, 2024)."""
    return _regress(q_TH, reward_T + gamma * q_next_ref_T)


def conservative(q_THV: Tensor, q_TH: Tensor, *, temperature: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:
    """−log softmax(Q/`temperature`)[a], summed over the heads: tokens that are not in the data become worth less (CQL).

    At the temperature at which the values are sampled it is the cross-entropy of that policy (B-Coder, 2024).
    """
    return ((q_THV / temperature).logsumexp(-1) - q_TH / temperature).sum(-1)


def discount_rewards(reward_T: Tensor, path_T: Tensor, gamma: float) -> Tensor:
    """Return Σ γ^k·r over the tokens from each one on, k tokens later, in its episode (T,)."""
    place_T, after_T = locate_in_path(path_T)
    if not len(path_T):
        return reward_T
    padded_PL = reward_T.new_zeros(int(path_T.max()) + 1, int(place_T.max()) + 1)
    padded_PL[path_T, after_T] = reward_T
    for column in range(1, padded_PL.shape[1]):
        padded_PL[:, column] += gamma * padded_PL[:, column - 1]
    return padded_PL[path_T, after_T]


def _regress(q_TH: Tensor, target_T: Tensor) -> Tensor:
    return ((q_TH - target_T.detach()[:, None]) ** 2).sum(-1) / 2
