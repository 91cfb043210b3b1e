"""What the decoupled ratio gives for a stale token, by hand."""

import math

import pytest
import torch


def check_decoupled_ratio(algorithm):
    """Check the ratio to the proximal policy, the weight of that policy against the sampling one, and its bound.

    The log-probabilities of the token are −1.0 under the policy, −1.5 under the proximal one and −1.7 when sampled.
    """
    lp_T, prox_T, behav_T = (torch.tensor([value], dtype=torch.float64) for value in (-1.0, -1.5, -1.7))
    no_T = torch.tensor([False])
    supplies = {"lp_T": lp_T, "lp_prox_T": prox_T, "lp_behav_T": behav_T, "external_T": no_T, "broken_T": no_T}
    assert algorithm.ratio.ask(0, supplies).item() == pytest.approx(0.5)
    (correction,) = algorithm.importance_correction
    assert correction.ask(0, supplies).item() == pytest.approx(math.exp(0.2))
    far = correction.ask(0, {**supplies, "lp_behav_T": behav_T - 5}).item()
    assert far == correction.options["high"]
