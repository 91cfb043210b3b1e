"""EPO: an entropy bonus over all turns, and a penalty for entropy that leaves a band around its past mean.

The terms, their weights and the controller are those of the recipe, on episodes that are laid out by hand. Not shown:
that an agent learns more from them, which is measured.
"""

from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.rl.update import regulate
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample
from schemas.number_schedules import value_at
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "epo.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
BONUS, STEPS = 0.01, 40


def bound(name):
    return bind_algorithm(STAGES[name], {port.path: Path("p") for port in LOADED.ports(name)})


def episode(turns, reward):
    """Turns of these numbers of sampled tokens, each before two observed ones."""
    size = sum(turn + 2 for turn in turns)
    made = Sample({"id": "a"}, 0, "policy", [7, 8], list(range(size)), [-1.0] * size, "stop", "")
    made.versions, made.turns = [0] * size, [Turn(turn, 2) for turn in turns]
    made.scores, made.reward = {"environment.earned": reward}, reward
    return made


def find_history(algorithm, pasts):
    """Return the number of the controller after iterations with these mean entropies."""
    states, controls = {}, {}
    for step, past in enumerate([{}, *[{"entropy": value} for value in pasts]]):
        controls = regulate(algorithm, step, {"metrics": past, "states": states})
    return controls


def find_terms(name, entropies, pasts, step=0):
    """Return the weighted sum of every further term by name, and the gradient of their sum by the entropies."""
    algorithm = bound(name)
    algorithm = algorithm.settled(find_history(algorithm, pasts))
    samples = [episode([2, 1], 1.0), episode([1], 0.0)]
    batch = with_advantages(algorithm, with_dropped(forest(samples), False), 0, states={}, rows=[{}] * 2)
    batch = with_weights(algorithm, batch, step, 256)
    entropy_T = torch.tensor(entropies, dtype=torch.float64, requires_grad=True)
    lp_T = torch.full((len(entropies),), -1.0, dtype=torch.float64)
    columns = view_columns(batch, {"lp": lp_T, "entropy": entropy_T})
    columns["lp_ref_T"] = lp_T
    sums = {
        term.function.name: (term.function.ask(step, columns) * columns[f"w.{i}_T"]).sum()
        for i, term in enumerate(algorithm.loss_terms)
    }
    (gradient,) = torch.autograd.grad(sum(sums.values()) + 0 * entropy_T.sum(), entropy_T)
    return {key: float(value.detach()) for key, value in sums.items()}, gradient.tolist()


def test_tokens_outside_of_the_band_around_the_past_mean_are_penalised():
    """A mean of 1 over the past: entropies .5, .9, 1.3 get .1, 0, .1; without a past nothing."""
    algorithm = bound("trained")
    settled = algorithm.settled(find_history(algorithm, [0.5, 1.5]))
    smoothing = next(term.function for term in settled.loss_terms if term.function.name == "entropy_smoothing")
    entropy_T = torch.tensor([0.5, 0.9, 1.3])
    assert smoothing.ask(0, {"entropy_T": entropy_T}).tolist() == pytest.approx([0.1, 0.0, 0.1])
    none = algorithm.settled(find_history(algorithm, []))
    smoothing = next(term.function for term in none.loss_terms if term.function.name == "entropy_smoothing")
    assert smoothing.ask(0, {"entropy_T": entropy_T}).tolist() == [0.0] * 3


def test_the_history_is_the_mean_over_past_iterations():
    algorithm = bound("trained")
    assert [find_history(algorithm, pasts)["past"] for pasts in ([], [0.8], [0.8, 1.2, 1.6])] == pytest.approx(
        [0.0, 0.8, 1.2]
    )


def test_all_tokens_of_an_episode_count_alike_whatever_their_turn():
    """−λ(mean H − β·mean P): turns of 2 and 1 tokens are one mean over three; two episodes."""
    entropies = [0.5, 0.9, 1.3, 1.0]
    sums, gradient = find_terms("trained", entropies, [1.0])
    assert sums["entropy"] == pytest.approx(-BONUS * ((0.5 + 0.9 + 1.3) / 3 + 1.0) / 2)
    assert sums["entropy_smoothing"] == pytest.approx(BONUS * ((0.1 + 0.0 + 0.1) / 3 + 0.0) / 2)
    assert gradient == pytest.approx([-BONUS / 6] * 3 + [-BONUS / 2])


def test_the_weight_of_the_penalty_falls_from_early_to_late_iterations():
    sizes = [find_terms("trained", [0.5, 0.9, 1.3, 1.0], [1.0], step)[0] for step in (0, STEPS // 2, STEPS)]
    assert [one["entropy_smoothing"] for one in sizes] == pytest.approx([BONUS * 0.2 / 6, BONUS * 0.1 / 6, 0.0])
    assert len({round(one["entropy"], 12) for one in sizes}) == 1


def test_the_papers_penalty_has_no_gradient_and_one_that_grows_moves_the_entropy_back():
    entropies = [0.5, 0.9, 1.3, 1.0]
    _, paper = find_terms("trained", entropies, [1.0])
    _, without = find_terms("trained", entropies, [])
    assert paper == without
    sums, moved = find_terms("moved", entropies, [1.0])
    assert sums["entropy_smoothing"] == pytest.approx(BONUS * 0.1 * (0.3 + 0.0 + 0.1) / 6)
    change = [after - before for before, after in zip(without, moved, strict=True)]
    assert change == pytest.approx([-BONUS * 0.1 / 6, 0.0, BONUS * 0.1 / 6, 0.0])


def test_trainings_differ_in_the_entropy_terms_and_in_nothing_else():
    names = [[term.function.name for term in bound(name).loss_terms] for name in ("trained", "moved", "grpo")]
    assert names == [["kl", "entropy", "entropy_smoothing"]] * 2 + [["kl"]]
    coefs = [value_at(term.coef, 0) for term in bound("trained").loss_terms]
    assert coefs == [0.01, BONUS, BONUS]
    settings = [STAGES[name].model_dump(exclude={"loss_terms", "controllers"}) for name in ("trained", "moved", "grpo")]
    assert settings[0] == settings[1] == settings[2]
    penalties = [STAGES[name].loss_terms[-1].model_dump() for name in ("trained", "moved")]
    assert penalties[1].pop("grows") is True
    assert penalties[0] == penalties[1]
    assert STAGES["trained"].max_steps == STEPS
    assert dict(STAGES["report"].models) == {
        "start": "cold_start",
        "trained": "trained",
        "moved": "moved",
        "grpo": "grpo",
    }
