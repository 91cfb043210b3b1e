"""RECAP: the recipe's controllers weight objectives by convergence and instability of their losses; fixed weights do
not.

Not shown: vision-language models; forgetting on OCR and segmentation.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.data.rows import write_rows
from learning.lookup import bind
from learning.rl.references import References
from learning.rl.sampling_slots import bind_sampling_slots
from learning.rl.update import regulate
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler
from schemas.number_schedules import settle
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "recap.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
POINTS = ("reward/answers.exact", "reward/formats.matches", "loss/cross_entropy")
NAMES = dict(zip(("accuracy", "format", "replay"), POINTS, strict=True))
INPUTS = {"extra_samples.0.data": Path("nowhere")}


def controls(keep):
    """The recipe's controls over some of its objectives."""
    stage = STAGES["trained"]
    best = {NAMES[name]: stage.controllers[name].options["best"][NAMES[name]] for name in keep}
    mine = {name: stage.controllers[name].model_copy(update={"best": best}) for name in keep}
    return bind_algorithm(stage.model_copy(update={"controllers": mine}), INPUTS)


def weights(losses, scale=None):
    """What the controls say after the losses of ten iterations; rewards are told as what is missing to 1."""
    algorithm, states, metrics = controls(list(losses)), {}, []
    for step in range(len(next(iter(losses.values())))):
        point = {}
        for name, series in losses.items():
            loss = series[step] * (scale or {}).get(name, 1.0)
            point[NAMES[name]] = loss if name == "replay" else 1 - loss
        metrics.append(regulate(algorithm, step, {"metrics": point, "states": states, "step": step}))
    return metrics


def window(mean, before, spread):
    """Two windows of five losses: one that stands, one with a mean and a (population) deviation."""
    far = spread * math.sqrt(5 / 4)
    return [before] * 5 + [mean - far, mean - far, mean, mean + far, mean + far]


def test_the_weights_of_two_objectives():
    result = weights({"accuracy": window(0.8, 0.8, 0.2), "format": window(0.1, 0.2, 0.01)})
    assert result[8] == {"accuracy": 1.0, "format": 1.0}
    signals = (1 + 0.2 / 1.6, 0.5 + 0.01 / 0.3)
    assert [round(s, 3) for s in signals] == [1.125, 0.533]
    raised = [math.exp(s / 5) for s in signals]
    want = [2 * r / sum(raised) for r in raised]
    assert [result[9]["accuracy"], result[9]["format"]] == pytest.approx(want, rel=1e-9)
    assert [round(w, 3) for w in want] == [1.059, 0.941]
    assert sum(result[9].values()) / 2 == pytest.approx(1.0, abs=1e-12)


def test_scaling_a_loss_changes_no_weight():
    losses = {"accuracy": window(0.8, 0.8, 0.2), "format": window(0.1, 0.2, 0.01), "replay": window(1.5, 2.0, 0.3)}
    plain = weights(losses)[-1]
    assert sum(plain.values()) == pytest.approx(3.0, abs=1e-12)
    assert len({round(w, 6) for w in plain.values()}) == 3
    assert weights(losses, {"replay": 10.0})[-1] == pytest.approx(plain, rel=1e-9)


def test_only_the_last_two_windows_count():
    """Whatever came before them, the weights are those of ten iterations."""
    losses = {"accuracy": window(0.8, 0.8, 0.2), "format": window(0.1, 0.2, 0.01)}
    longer = {name: [0.4, 0.9, 0.1, 0.7, *series] for name, series in losses.items()}
    assert weights(longer)[-1] == pytest.approx(weights(losses)[-1], rel=1e-12)


def test_a_loss_that_was_zero_counts_as_doubled():
    """Mean 0.2 after 0: convergence 2, instability 0.01 / 0.3; beside a loss that stands still, 1."""
    result = weights({"accuracy": [0.5] * 10, "format": window(0.2, 0.0, 0.01)})[-1]
    raised = [math.exp(s / 5) for s in (1.0, 2.0 + 0.01 / 0.3)]
    assert [result["accuracy"], result["format"]] == pytest.approx([2 * r / sum(raised) for r in raised], rel=1e-9)


def test_a_saturating_format_moves_the_weights_and_fixed_ones_stay():
    falling = {"accuracy": [0.8] * 10, "format": [0.5] * 5 + [0.05] * 5}
    result = weights(falling)[-1]
    assert result["accuracy"] > 1 > result["format"]
    assert [use.weight for use in STAGES["fixed"].rewards] == [1.0, 1.0]
    assert not STAGES["fixed"].controllers
    assert STAGES["fixed"].loss_terms[0].coef == 1.0
    parts = bind_sampling_slots(STAGES["trained"], INPUTS)
    assert [settle(w, result | {"replay": 1.0}) for w in parts.weights] == [result["accuracy"], result["format"]]


def test_no_other_model_is_loaded(tiny_policy):
    algorithm = bind_algorithm(STAGES["trained"], INPUTS)
    assert References(STAGES["trained"], algorithm, tiny_policy, {}).models == {}
    assert STAGES["trained"].critic is None


def test_replay_is_about_old_answers_and_nothing_else(tiny_policy, tmp_path):
    """Old rows come in as given answers: they have the likelihood's weight alone, new samples the surrogate's."""
    rest = {"family": "old", "metadata": "{}"}
    rows = [
        {"id": str(i), "prompt": [{"role": "user", "content": f"q{i}"}], "answer": "ok", **rest}
        | {"completion": [{"role": "assistant", "content": "ok"}]}
        for i in range(40)
    ]
    write_rows(tmp_path, "chat", rows)
    sampler = Sampler(None, tiny_policy, None, 0, 0, groups=1)
    own = [Sample({"id": "new"}, 0, "policy", [5, 6], [7] * n, [-1.0] * n, "stop", "", reward=float(n)) for n in (2, 3)]
    rehearse = bind(STAGES["trained"].extra_samples[0], "extra_samples.0", {"extra_samples.0.data": tmp_path})
    mixed = rehearse.ask(0, {"samples": own, "sampler": sampler, "rng": np.random.default_rng(1)})
    assert mixed[:2] == own
    assert len(mixed) == 2 + 32 == 2 + len({t.row["id"] for t in mixed[2:]})
    assert {t.source for t in mixed[2:]} == {"auxiliary"}
    for sample in mixed:
        sample.scores, sample.reward = {"r": 1.0}, sample.reward or 1.0
    algorithm = bind_algorithm(STAGES["trained"], INPUTS).settled({"accuracy": 1.0, "format": 1.0, "replay": 0.5})
    (term,) = algorithm.loss_terms
    assert term.function.ask(0, {"lp_T": torch.tensor([-2.0])}).tolist() == [2.0]  # what it minimises
    batch = with_advantages(algorithm, with_dropped(forest(mixed), False), 0)
    batch = with_weights(algorithm, batch, 0, 8)
    new_T = batch.path_T < 2
    assert bool((batch.sampled("w")[new_T] > 0).all())
    assert not bool(batch.sampled("w")[~new_T].any())
    assert not bool(batch.sampled("w.0")[new_T].any())
    assert float(batch.sampled("w.0").sum()) == pytest.approx(0.5)
    assert torch.equal(batch.sampled("advantage")[~new_T], torch.zeros(int((~new_T).sum())).double())
