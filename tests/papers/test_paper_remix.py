"""Squeeze the Soaked Sponge: ReMix's convex KL with its λ(t), the ratio of stored tokens and its range have the exact
values; the effects of the switch to on-policy data are shown.

Not shown: rollout savings of 30 to 450 times.
"""

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.collection.extra_samples.extra_samples import replay
from learning.lookup import bind
from learning.models.sharded_model import Trained
from learning.rl.references import References
from learning.rl.update import update, with_proximal
from learning.samples.sample import SOURCES, Sample
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "remix.yaml"
DOUBLE = {"dtype": torch.float64}


@cache
def recipe():
    return load_recipe(RECIPE, profile="tiny")


def algorithm(stage="mixed"):
    return bind_algorithm(recipe().stages[stage], {})


def log(probability):
    return torch.tensor([probability], **DOUBLE).log()


def compute_lam(t):
    """λ(t) as the paper gives it."""
    return max(1 - 0.1 * math.ceil(max(t - 50, 0) / 10), 0.5)


@pytest.mark.parametrize(("stage", "start"), [("mixed", 0), ("reincarnated", 50)])
def test_the_penalty_is_a_convex_mix_that_moves_to_the_previous_policy(stage, start):
    """k3 = e^−gap − 1 + gap of both references, mixed by the λ of the iteration, which goes on over the switch."""
    term = algorithm(stage).loss_terms[0]
    assert (term.function.name, term.coef) == ("kl_convex", 0.02)
    lp = log(0.5)
    supplies = {"lp_T": lp, "lp_base_T": lp - 0.4, "lp_previous_T": lp - 0.2}
    base, previous = (math.exp(-gap) - 1 + gap for gap in (0.4, 0.2))
    for step in range(110):
        lam = compute_lam(start + step)
        expected = lam * base + (1 - lam) * previous
        assert term.function.ask(step, supplies).item() == pytest.approx(expected, abs=1e-12)
    assert recipe().stages["mixed"].max_steps == 50


@pytest.mark.parametrize("stage", ["mixed", "reincarnated"])
def test_entropy_is_rewarded_in_both_stages(stage):
    term = algorithm(stage).loss_terms[1]
    assert term.coef == 0.001
    assert term.function.ask(0, {"entropy_T": torch.tensor([0.7])}).item() == pytest.approx(-0.7)


def test_the_range_of_a_stored_token_is_around_its_ratio_before_the_update():
    """−min(rA, clip(r, c − 0.2, c + 0.2)·A), c = π_k/π_sampler, with values and gradients by hand."""
    behav, prox = 0.2, 0.25  # c = 1.25: the range is [1.05, 1.45]
    for current, advantage, value, moves in [
        (0.28, 1.0, -1.4, True),  # above 1.2, but within 0.2 of c
        (0.30, 1.0, -1.45, False),
        (0.30, -1.0, 1.5, True),
        (0.20, -1.0, 1.05, False),
        (0.20, 1.0, -1.0, True),
    ]:
        lp = log(current).reshape(1).requires_grad_()
        loss = algorithm().policy_loss.ask(
            0,
            {
                "log_ratio_T": lp - log(behav),
                "advantage_T": torch.tensor([advantage], **DOUBLE),
                "lp_prox_T": log(prox).reshape(1),
                "lp_behav_T": log(behav).reshape(1),
            },
        )
        (slope,) = torch.autograd.grad(loss.sum(), lp)
        assert loss.item() == pytest.approx(value, abs=1e-12)
        assert slope.item() == pytest.approx(-advantage * current / behav if moves else 0.0, abs=1e-12)


def test_two_fifths_of_the_data_are_stored():
    mixed = recipe().stages["mixed"]
    own, stored = mixed.generation_batch_size // mixed.num_generations, mixed.extra_samples[0].options["groups"]
    assert stored / (own + stored) == 0.4
    full = load_recipe(RECIPE, profile="full").stages["mixed"]
    own, stored = full.generation_batch_size // full.num_generations, full.extra_samples[0].options["groups"]
    assert stored / (own + stored) == 0.4


def sample(group, logprob, step, source="policy"):
    row = {"id": f"p{group}", "family": "f"}
    return Sample(
        row, group, source, [1, group], [5], [logprob], "stop", "", versions=[step], scores={"r": 1.0}, reward=1.0
    )


def sources(steps):
    """The samples of each iteration after the recipe's source, one group of one sampled in each."""
    part, state, result = bind(recipe().stages["mixed"].extra_samples[0]), {}, []
    for step in range(steps):
        groups = iter(range(1, 100))
        sampler = SimpleNamespace(new_group=lambda groups=groups: next(groups))
        samples = [sample(0, float(log(0.2 + 0.01 * step)), step)]
        result.append(part.function(samples, step, sampler, state, np.random.default_rng(step), **part.options))
    return result


def test_a_stored_token_keeps_the_policy_that_sampled_it():
    assert bind(recipe().stages["mixed"].extra_samples[0]).function is replay
    stored = [t for t in sources(2)[1] if t.source == "replay"]
    made = forest([sample(0, float(log(0.25)), 1), *stored])
    lp = log(0.3).expand(2)
    supplies = {"lp_T": lp, "lp_behav_T": made.sampled("lp_behav")}
    ratio = algorithm().ratio.ask(0, supplies).exp()
    assert ratio.tolist() == pytest.approx([0.3 / 0.25, 0.3 / 0.2], abs=1e-12)
    assert ratio.tolist() == pytest.approx([1.2, 1.5], abs=1e-12)
    assert made.sampled("version").tolist() == [1, 0]


def test_the_buffer_holds_the_last_two_policies():
    shares = [[t.versions[0] for t in samples if t.source == "replay"] for samples in sources(6)]
    assert shares == [[], [0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert SOURCES.index("replay") == forest(sources(2)[1]).paths["source"][1]


def test_after_the_switch_data_are_on_policy_and_updates_fall_to_one():
    mixed, reincarnated = (recipe().stages[name] for name in ("mixed", "reincarnated"))
    assert (len(mixed.extra_samples), mixed.num_iterations) == (1, 2)
    assert (len(reincarnated.extra_samples), reincarnated.num_iterations) == (0, 1)
    ports = {port.path: list(port.steps) for port in recipe().ports("reincarnated")}
    assert ports["model"] == ["mixed"]
    assert not [path for path in ports if path.startswith("references")]  # the base is what the stage starts from


@pytest.mark.parametrize(("name", "updates"), [("mixed", 2), ("reincarnated", 1)])
def test_a_batch_is_updated_on_so_often(tiny_policy, name, updates):
    stage = recipe().stages[name].model_copy(update={"loss_terms": []})
    how = bind_algorithm(stage, {})
    batch = with_advantages(how, with_dropped(forest([sample(0, -1.0, 0), sample(1, -1.0, 0)]), False), 0)
    trained = Trained(tiny_policy.model)
    optimizer = Counting(tiny_policy.model.parameters(), lr=0.0)
    update(how, trained, optimizer, with_proximal(how, batch, trained, stage), stage, 0)
    assert optimizer.count == updates


class Counting(torch.optim.SGD):
    """Counts its steps."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        return super().step(closure)


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_policy_that_starts_is_the_base_and_the_previous_one_follows(tiny_policy):
    stage = recipe().stages["reincarnated"]
    references = References(stage, bind_algorithm(stage, {}), tiny_policy, {})
    start = parameters(tiny_policy.model).clone()
    assert sorted(references.models) == ["base", "previous"]
    assert all(torch.equal(parameters(model), start) for model in references.models.values())
    for step in range(2):
        with torch.no_grad():
            next(tiny_policy.model.parameters()).add_(0.1)
        references.refresh(tiny_policy, step)
        assert torch.equal(parameters(references.models["previous"]), parameters(tiny_policy.model))
        assert torch.equal(parameters(references.models["base"]), start)
