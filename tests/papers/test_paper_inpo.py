"""Iterative Nash Policy Optimization: the squared loss on pairs has the paper's values, and self-play with it converges
to the Nash policy.

Not shown: AlpacaEval; convergence is shown on a bandit of three answers, whose preference is stone, scissors and paper.
"""

from pathlib import Path

import pytest
import torch

from learning.lookup import bind
from learning.preference.duels import styles
from learning.preference.games import inpo
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "inpo.yaml"


def loss(d, d_ref, d_prev, eta, tau):
    """Of one pair, given as differences."""
    zero = torch.zeros(1, dtype=torch.float64)
    sides = (d, zero, d_ref + zero, zero, d_prev + zero, zero)
    return inpo(*sides, eta=eta, tau=tau)


def test_the_recipes_loss_at_its_start():
    use = bind(load_recipe(RECIPE, profile="tiny").stages["rounds-1-tune"].loss[0])
    assert use.options == {"eta": 0.25, "tau": 0.083}
    assert loss(leaf(-0.7), -0.7, -0.7, **use.options).item() == pytest.approx(1 / (4 * 0.25**2), rel=1e-14)


def leaf(value):
    return torch.tensor([value], dtype=torch.float64, requires_grad=True)


def test_the_loss_has_the_papers_value():
    assert loss(leaf(2.0), 0.5, 1.0, eta=1.0, tau=0.5).item() == pytest.approx(0.75**2, abs=1e-15)


@pytest.mark.parametrize("eta", [0.25, 1.0, 3.0])
def test_where_all_three_policies_are_one_it_is_a_quarter_of_the_inverse_square(eta):
    assert loss(leaf(-0.7), -0.7, -0.7, eta=eta, tau=0.3 * eta).item() == pytest.approx(1 / (4 * eta**2), rel=1e-14)


@pytest.mark.parametrize(("tau", "depends"), [(1.0, False), (0.5, True)])
def test_with_tau_equal_to_eta_the_round_before_does_not_matter(tau, depends):
    pulls = []
    for d_prev in (1.0, -4.0):
        d = leaf(2.0)
        loss(d, 0.5, d_prev, eta=1.0, tau=tau).backward()
        pulls.append(d.grad.item())
    assert (pulls[0] != pulls[1]) == depends


def test_the_recipe_plays_against_the_policy_of_the_round_and_stays_near_the_start():
    recipe = load_recipe(RECIPE, profile="tiny")
    for i in (1, 2, 3):
        tune = recipe.stages[f"rounds-{i}-tune"]
        ports = {port.path: port.steps for port in recipe.ports(f"rounds-{i}-tune")}
        now = ("styled",) if i == 1 else (f"rounds-{i - 1}-tune",)
        assert (ports["model"], ports["reference"], tune.previous) == (now, ("styled",), None)
        samples = {port.path: port.steps for port in recipe.ports(f"rounds-{i}-samples")}
        assert samples["model"] == now
        assert bind(tune.loss[0]).function is inpo


def test_the_oracle_is_fair_and_not_transitive():
    by = load_recipe(RECIPE, profile="tiny").stages["rounds-1-samples"].rewards[0].options["by"]
    options = {key: value for key, value in by.items() if key != "use"}
    row = {"answer": "7"}

    def prefers(a, b):
        return styles(row, a, b, **options)

    completions = ["7", "= 7", "so 7", "8", "= 8", "so 8", ""]
    for a in completions:
        for b in completions:
            assert prefers(a, b) + prefers(b, a) == pytest.approx(1, abs=1e-15)
    circle = [prefers("7", "= 7"), prefers("= 7", "so 7"), prefers("so 7", "7")]
    assert circle == pytest.approx([1 / (1 + 2.718281828459045**-2)] * 3)
    assert prefers("so 7", "so 8") == prefers("7", "8") == pytest.approx(circle[0])
    assert prefers("so 7", "= 8") == pytest.approx(0.5)  # right, but of the style that loses


STONE = torch.tensor([[0.5, 1.0, 0.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.5]], dtype=torch.float64)


def play(rounds, *, eta, tau, steps=60):
    """Rounds of INPO with all pairs of three answers, each label as often as the oracle says it; the policies."""
    ref = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    now, seen = ref.clone(), []
    for _ in range(rounds):
        prev, logits = now.clone(), now.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([logits], max_iter=steps, tolerance_grad=1e-12)

        def closure(prev=prev, logits=logits, optimizer=optimizer):
            optimizer.zero_grad()
            lp = logits.log_softmax(0)
            i, j = (x.flatten() for x in torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij"))
            share = (prev.exp()[i] * prev.exp()[j]) * STONE[i, j]
            per_pair = inpo(lp[i], lp[j], ref[i], ref[j], prev[i], prev[j], eta=eta, tau=tau)
            total = (share * per_pair).sum()
            total.backward()
            return total

        optimizer.step(closure)
        now = logits.detach().log_softmax(0)
        seen.append(now.exp())
    return ref, seen


def test_play_against_itself_comes_to_the_regularised_nash_policy():
    """At the fixed point π ∝ π_ref·exp(P(·, π)/τ), which no answer improves on."""
    tau, eta = 0.5, 1.5
    ref, seen = play(25, eta=eta, tau=tau)
    last = seen[-1]
    against = STONE @ last
    fixed = (ref + against / tau).softmax(0)
    torch.testing.assert_close(last, fixed, rtol=0, atol=1e-3)
    distance = [float((p - fixed).abs().sum()) for p in seen]
    assert distance[0] > 10 * distance[-1]


def test_one_round_is_a_step_of_mirror_descent():
    """π_{t+1} ∝ π_ref^(τ/η)·π_t^(1 − τ/η)·exp(P(·, π_t)/η), in closed form."""
    eta, tau = 2.0, 0.4
    ref, seen = play(1, eta=eta, tau=tau)
    wins = STONE @ ref.exp()
    torch.testing.assert_close(seen[0], (ref + wins / eta).softmax(0), rtol=0, atol=1e-5)


def test_a_completion_draws_against_itself_when_the_recipe_ranks_the_samples_of_a_round():
    """P(y beats the policy) is the mean over all samples of the group, itself included: the rates average one half."""
    reward = bind(load_recipe(RECIPE, profile="tiny").stages["rounds-1-samples"].rewards[0])
    row = {"id": "p", "answer": "3", "prompt": [{"role": "user", "content": "1 + 2"}]}
    texts = ["3", "= 3", "4"]
    wins = [[styles(row, a, b, **reward.options["by"].options) for b in texts] for a in texts]
    rates = reward.ask(0, {"rows": [row] * 3, "completions": texts, "groups": [0] * 3})
    assert rates == pytest.approx([(0.5 + sum(wins[i]) - wins[i][i]) / 3 for i in range(3)], abs=1e-12)
    assert sum(rates) / 3 == pytest.approx(0.5, abs=1e-12)
