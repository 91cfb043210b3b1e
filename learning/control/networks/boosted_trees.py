"""Boosted trees in place of networks: symmetric trees of equal depth, whose leaves have a number for every output.

Shapes: B steps, O numbers of an observation, K outputs, T trees, D levels of a tree, L = 2^D leaves, C splits to try.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Tree:
    """A test of one number of the observation at each level, and the leaf that the answers lead to."""

    feature_D: np.ndarray
    threshold_D: np.ndarray
    leaf_LK: np.ndarray


def list_splits(observation_BO: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and thresholds (C,) between values that occur, at most `most` of each number, evenly in rank.

    Numbers that are 0 or 1 alone have one split, which asks for equality: one-hot choices are categories.
    """
    features, thresholds = [], []
    for number, column_B in enumerate(observation_BO.T):
        values = np.unique(column_B)
        between = (values[1:] + values[:-1]) / 2
        if len(between) > most:
            between = between[np.linspace(0, len(between) - 1, most).round().astype(int)]
        features += [number] * len(between)
        thresholds += between.tolist()
    return np.array(features, int), np.array(thresholds, float)


def fit_tree(observation_BO: np.ndarray, gradient_BK: np.ndarray, depth: int, most_splits: int) -> Tree:
    """Return a tree with mean gradients as leaves; each level has the split of the largest Σ n |mean gradient|²."""
    features, thresholds = list_splits(observation_BO, most_splits)
    leaf_B = np.zeros(len(observation_BO), int)
    chosen: list[tuple[int, float]] = []
    passes_BC = (observation_BO[:, features] > thresholds).astype(float)
    for _ in range(depth):
        if not len(features):
            chosen.append((0, np.inf))
            leaf_B = 2 * leaf_B
            continue
        score_C = np.zeros(len(features))
        for leaf in np.unique(leaf_B):
            inside = leaf_B == leaf
            right_CK, count_C = passes_BC[inside].T @ gradient_BK[inside], passes_BC[inside].sum(0)
            left_CK = gradient_BK[inside].sum(0) - right_CK
            for sum_CK, number_C in ((right_CK, count_C), (left_CK, inside.sum() - count_C)):
                score_C += (sum_CK**2).sum(1) / np.maximum(number_C, 1)
        best = int(score_C.argmax())
        chosen.append((int(features[best]), float(thresholds[best])))
        leaf_B = 2 * leaf_B + passes_BC[:, best].astype(int)
    leaf_LK = np.zeros((2**depth, gradient_BK.shape[1]))
    np.add.at(leaf_LK, leaf_B, gradient_BK)
    leaf_LK /= np.maximum(np.bincount(leaf_B, minlength=2**depth), 1)[:, None]
    return Tree(np.array([f for f, _ in chosen]), np.array([t for _, t in chosen]), leaf_LK)


class TreeEnsemble(nn.Module):
    """A sum of trees, and a constant: outputs of observations."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("feature_TD", torch.zeros(0, 1, dtype=torch.int64))
        self.register_buffer("threshold_TD", torch.zeros(0, 1))
        self.register_buffer("leaf_TLK", torch.zeros(0, 2, outputs))

    def __len__(self) -> int:
        return len(self.get_buffer("feature_TD"))

    def add(self, tree: Tree, rate_K: np.ndarray) -> None:
        """Go a step of `rate_K`, a rate for each output, down the gradient that a tree was fitted to."""
        made = {
            "feature_TD": torch.from_numpy(tree.feature_D)[None],
            "threshold_TD": torch.from_numpy(tree.threshold_D).float()[None],
            "leaf_TLK": torch.from_numpy(-tree.leaf_LK * rate_K).float()[None],
        }
        before = [self.get_buffer(name) for name in made] if len(self) else None
        for number, (name, one) in enumerate(made.items()):
            setattr(self, name, one if before is None else torch.cat([before[number], one]))

    def forward(self, observation: Tensor) -> Tensor:
        """Return the outputs (…, K)."""
        flat_BO = observation.reshape(-1, observation.shape[-1])
        if not len(self):
            return self.start.expand(*observation.shape[:-1], -1)
        feature_TD, leaf_TLK = self.get_buffer("feature_TD"), self.get_buffer("leaf_TLK")
        passes_BTD = (flat_BO[:, feature_TD] > self.get_buffer("threshold_TD")).long()
        place_BT = (passes_BTD * 2 ** torch.arange(feature_TD.shape[1]).flip(0)).sum(-1)
        made_BK = leaf_TLK[torch.arange(len(feature_TD)), place_BT].sum(1)
        return (self.start + made_BK).reshape(*observation.shape[:-1], -1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("feature_TD", "threshold_TD", "leaf_TLK"):
            if prefix + name in state_dict:  # there are as many trees as the policy had that was saved
                setattr(self, name, torch.zeros_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class Columns(nn.Module):
    """Some of the outputs of an ensemble."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        self.first, self.end = first, end

    def forward(self, output: Tensor) -> Tensor:
        """Return them."""
        return output[..., self.first : self.end]
