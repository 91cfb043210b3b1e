"""Mirror descent on tables: its step against two independent formulas, its rate against the theorem's bound."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import softmax

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.tables.counts import read_table, write_table
from learning.control.tables.mirror_descent import evaluate_exactly, policy_mirror_descent
from schemas.control import NetworkSettings
from schemas.errors import StepError
from tests.control_worlds import keep_steps

GAMMA, S, A = 0.8, 4, 3


def draw():
    """A process whose chances are whole hundredths, and kept steps that show exactly these."""
    rng = np.random.default_rng(5)
    count_SAS = np.stack([rng.multinomial(100, row) for row in rng.dirichlet(np.full(S, 0.5), size=S * A)])
    count_SAS, reward_SA = count_SAS.reshape(S, A, S), rng.integers(0, 9, (S, A)) / 8
    rows = [
        (state, action, reward_SA[state, action], after, False)
        for (state, action, after), count in np.ndenumerate(count_SAS)
        for _ in range(count)
    ]
    return count_SAS / 100, reward_SA, keep_steps(rows, S)


def make(**options):
    torch.manual_seed(0)
    networks = Networks(Spaces(S, A), NetworkSettings(hidden_sizes=[]))
    return policy_mirror_descent(networks, gamma=GAMMA, **options)


def sum_rewards(reward_SA, next_SAS, policy_SA):
    """Q of a policy by adding up 400 discounted steps, from every pair."""
    occupied, total = np.eye(S * A), np.zeros(S * A)
    chain = (next_SAS[..., None] * policy_SA).reshape(S * A, S * A)
    for step in range(400):
        total += GAMMA**step * occupied @ reward_SA.reshape(-1)
        occupied = occupied @ chain
    return total.reshape(S, A)


def iterate_values(reward_SA, next_SAS):
    value_S = np.zeros(S)
    for _ in range(400):
        value_S = (reward_SA + GAMMA * next_SAS @ value_S).max(1)
    return value_S


def test_a_policy_is_evaluated_as_its_discounted_rewards_add_up():
    next_SAS, reward_SA, _ = draw()
    policy_SA = np.random.default_rng(1).dirichlet(np.ones(A), size=S)
    value_SA, value_S = evaluate_exactly(reward_SA, next_SAS, policy_SA, GAMMA)
    expected = sum_rewards(reward_SA, next_SAS, policy_SA)
    assert value_SA == pytest.approx(expected, abs=1e-10)
    assert value_S == pytest.approx((policy_SA * expected).sum(1), abs=1e-10)


def test_an_update_maximises_the_linear_objective_near_the_policy_before():
    """A numerical maximum over distributions, of η ⟨Q, p⟩ − KL(p‖π), where π is not uniform."""
    next_SAS, reward_SA, kept = draw()
    algorithm, eta = make(step_size=2.5, updates=1), 2.5
    before_SA = softmax(np.random.default_rng(2).normal(size=(S, A)), axis=1)
    write_table(algorithm.actor, np.log(before_SA))
    algorithm.fit(kept, None)
    value_SA = sum_rewards(reward_SA, next_SAS, before_SA)
    made_SA = softmax(read_table(algorithm.actor), axis=1)

    def loss(free, s):
        p = softmax(np.append(free, 0.0))
        return (p * np.log(p / before_SA[s])).sum() - eta * value_SA[s] @ p

    for s in range(S):
        best = minimize(loss, np.zeros(A - 1), args=(s,), tol=1e-12)
        assert made_SA[s] == pytest.approx(softmax(np.append(best.x, 0.0)), abs=2e-5)


def test_with_growing_steps_values_come_near_the_best_ones_at_the_linear_rate_of_the_theorem():
    """Xiao 2022, theorem 10: δ_k ≤ (1 − 1/ϑ)^k (δ_0 + D_0 / ((1 − γ) η_0 (ϑ − 1))), ϑ = ‖d*/ρ‖ / (1 − γ)."""
    next_SAS, reward_SA, kept = draw()
    best_S, rho = iterate_values(reward_SA, next_SAS), np.full(S, 1 / S)
    greedy = (reward_SA + GAMMA * next_SAS @ best_S).argmax(1)
    visited = np.linalg.solve(np.eye(S) - GAMMA * next_SAS[np.arange(S), greedy].T, (1 - GAMMA) * rho)
    theta, start = (visited / rho).max() / (1 - GAMMA), np.log(A)

    def measure(updates, growth):
        algorithm = make(step_size=0.5, growth=growth, updates=updates)
        algorithm.fit(kept, None)
        policy_SA = softmax(read_table(algorithm.actor), axis=1)
        return rho @ (best_S - (policy_SA * sum_rewards(reward_SA, next_SAS, policy_SA)).sum(1))

    first = rho @ (best_S - sum_rewards(reward_SA, next_SAS, np.full((S, A), 1 / A)).mean(1))
    bound = first + start / ((1 - GAMMA) * 0.5 * (theta - 1))
    errors = {k: measure(k, 1 / GAMMA) for k in (1, 2, 4, 8, 12, 16)}
    assert all(-1e-6 < error <= (1 - 1 / theta) ** k * bound for k, error in errors.items())
    steady = measure(16, 1.0)
    assert 1e-4 < steady <= (start / 0.5 + 1 / (1 - GAMMA)) / (16 * (1 - GAMMA)), "the rate of constant steps"
    assert errors[16] < steady / 10


def test_what_never_ends_needs_a_discount():
    reward_SA, next_SAS = np.ones((1, 1)), np.ones((1, 1, 1))
    with pytest.raises(StepError, match="gamma below 1"):
        evaluate_exactly(reward_SA, next_SAS, np.ones((1, 1)), 1.0)
