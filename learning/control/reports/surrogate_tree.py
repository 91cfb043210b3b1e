"""A small decision tree that imitates a policy: questions about single numbers of an observation.

Shapes: N observations, O numbers of each.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tree:
    """A leaf with an action, or a question: is number `feature` at most `threshold`?"""

    action: int
    feature: int = -1
    threshold: float = 0.0
    below: "Tree | None" = None
    above: "Tree | None" = None

    def predict(self, observation_NO: np.ndarray) -> np.ndarray:
        """Return the action (N,) for every observation."""
        if self.below is None or self.above is None:
            return np.full(len(observation_NO), self.action)
        is_below_N = observation_NO[:, self.feature] <= self.threshold
        return np.where(is_below_N, self.below.predict(observation_NO), self.above.predict(observation_NO))

    def describe(self, indent: str = "") -> list[str]:
        """Return the tree as lines of text."""
        if self.below is None or self.above is None:
            return [f"{indent}action {self.action}"]
        lines = [f"{indent}number {self.feature} <= {self.threshold:g}", *self.below.describe(indent + "  ")]
        return [*lines, f"{indent}else", *self.above.describe(indent + "  ")]


def fit_tree(observation_NO: np.ndarray, action_N: np.ndarray, depth: int) -> Tree:
    """Return the tree that is grown by the largest fall of Gini's impurity, up to a depth (Breiman et al. 1984)."""
    count_A = np.bincount(action_N)
    action = int(count_A.argmax())
    if depth == 0 or count_A.max() == len(action_N):
        return Tree(action)
    question = find_question(observation_NO, action_N)
    if question is None:
        return Tree(action)
    feature, threshold = question
    is_below_N = observation_NO[:, feature] <= threshold
    below = fit_tree(observation_NO[is_below_N], action_N[is_below_N], depth - 1)
    above = fit_tree(observation_NO[~is_below_N], action_N[~is_below_N], depth - 1)
    return Tree(action, feature, threshold, below, above)


def find_question(observation_NO: np.ndarray, action_N: np.ndarray) -> tuple[int, float] | None:
    """Return the number and the threshold that leave the least impurity; None if all observations are alike."""
    best, found = np.inf, None
    is_action_NA = action_N[:, None] == np.arange(int(action_N.max()) + 1)
    for feature in range(observation_NO.shape[1]):
        value_V = np.unique(observation_NO[:, feature])
        for threshold in (value_V[1:] + value_V[:-1]) / 2:
            is_below_N = observation_NO[:, feature] <= threshold
            left = measure_impurity(is_action_NA[is_below_N].sum(0)) + measure_impurity(
                is_action_NA[~is_below_N].sum(0)
            )
            if left < best - 1e-9:
                best, found = left, (feature, float(threshold))
    return found


def measure_impurity(count_A: np.ndarray) -> float:
    """Return Gini's impurity of counted actions, times their number."""
    return float(count_A.sum() - (count_A**2).sum() / max(1, count_A.sum()))
