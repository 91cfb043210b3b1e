"""Corrections by numbers, and the traps of ratios: what is lost, counted twice, or taken from the wrong tokens."""

import itertools
import math

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped, with_factors, with_weights
from learning.algorithm.ratios import ratios
from learning.batch.batch import Batch
from learning.batch.columns import ColumnView
from learning.lookup import bind
from schemas.signatures import list_names, read_signature
from schemas.stages.rl import Rl
from schemas.use import ImportanceCorrectionUse, LossTermUse, PolicyLossUse, RatioUse

GAP = [[0.1, -0.2, 0.0], [1.0, 1.5], [-3.0, 0.5, 0.2, -0.1]]
"""log(π_prox/π_behav) of three completions."""
FLAT = [g for path in GAP for g in path]
PATH = torch.tensor([p for p, path in enumerate(GAP) for _ in path])
RATIO = [math.exp(g) for g in FLAT]


def factor(name, *, external=(), broken=(), **options):
    """A correction of the three completions; the first and the last are bad ones."""
    behav = torch.full((9,), -4.0, dtype=torch.float64)
    flags = torch.arange(9)
    columns = {
        "lp_behav_T": behav,
        "lp_prox_T": behav + torch.tensor(FLAT, dtype=torch.float64),
        "path_T": PATH,
        "advantage_T": torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)[PATH],
        "external_T": torch.isin(flags, torch.tensor(external, dtype=torch.long)),
        "broken_T": torch.isin(flags, torch.tensor(broken, dtype=torch.long)),
    }
    return bind(ImportanceCorrectionUse.model_validate({"use": name, **options})).ask(0, columns).tolist()


def spread(values):
    return [v for v, path in zip(values, GAP, strict=True) for _ in path]


def test_token_caps_or_drops_and_may_leave_1():
    assert factor("token", high=2.0) == pytest.approx([min(r, 2.0) for r in RATIO])
    dropped = [r if 0.5 <= r <= 3.0 else 0.0 for r in RATIO]
    assert factor("token", low=0.5, high=3.0, outside="mask") == pytest.approx(dropped)
    assert factor("token", low=0.5, high=3.0, outside="mask", reweight=False) == [float(d > 0) for d in dropped]


def test_sequence_takes_the_product_or_the_geometric_mean():
    product = [math.exp(sum(path)) for path in GAP]
    assert factor("sequence", high=2.0) == pytest.approx(spread([min(p, 2.0) for p in product]))
    mean = [math.exp(sum(path) / len(path)) for path in GAP]
    inside = [m if 0.9 <= m <= 1.1 else 0.0 for m in mean]
    assert [bool(i) for i in inside] == [True, False, False]
    got = factor("sequence", mean="geometric", low=0.9, high=1.1, outside="mask")
    assert got == pytest.approx(spread(inside))


def test_off_policy_drops_bad_completions_that_the_policy_has_left():
    # Means of log(π_behav/π_prox): 0.03, −1.25, 0.6; the second is a good one.
    assert factor("off_policy", limit=0.1) == spread([1.0, 1.0, 0.0])
    assert factor("off_policy", limit=0.01) == spread([0.0, 1.0, 0.0])


def test_second_moment_keeps_as_much_as_the_bound_allows():
    squares = sorted(g * g for g in FLAT)
    for limit in (0.001, 0.04, 0.3, 1.0, 10.0):
        best = max((n for n in range(10) if n == 0 or sum(squares[:n]) / n <= limit), default=0)
        got = factor("second_moment", limit=limit)
        assert sum(got) == best
        assert all(g * g <= squares[best - 1] for g, keep in zip(FLAT, got, strict=True) if keep)


def test_masks_by_probability_variation_and_veto():
    p = math.exp(-4.0)
    gaps = [abs(p * r - p) for r in RATIO]
    assert factor("probability_gap", limit=0.03) == [float(g <= 0.03) for g in gaps]
    assert 0 < sum(g > 0.03 for g in gaps) < 9
    variation = [sum(abs(math.exp(g) - 1) for g in path) / 2 / len(path) for path in GAP]
    assert factor("variation", limit=0.3) == spread([float(v <= 0.3) for v in variation])
    assert factor("veto", low=0.1, high=100.0) == spread([1.0, 1.0, 0.0])
    assert factor("veto", low=0.01, high=4.0) == spread([1.0, 0.0, 1.0])


def test_tokens_of_other_samplers_have_no_mismatch():
    assert factor("token", high=2.0, external=[3, 4], broken=[5])[3:6] == [1.0] * 3
    assert factor("veto", low=0.1, high=4.0, external=[3, 4], broken=[5]) == [1.0] * 9


def stage(**more):
    slots = {
        "advantage": ["center", "scale"],
        "ratio": "token",
        "policy_loss": "clipped",
        "loss_aggregation": "token_mean",
    }
    base = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1}
    return Rl.model_validate({**base, **slots, **more})


def gradient(golden, lp, behav=None, **more):
    """Gradient by the tokens' log-probabilities when the update begins: π is π_prox."""
    algorithm = bind_algorithm(stage(**more), {})
    lp = lp.detach().clone().requires_grad_()
    made = golden.batch.replaced(lp_prox=lp.detach())
    made = made if behav is None else made.replaced(lp_behav=behav)
    made = with_advantages(algorithm, with_dropped(made, False), 0)
    made = with_weights(algorithm, with_factors(algorithm, made, 0), 0, 9)
    columns = view_columns(made, {"lp": lp})
    columns["log_ratio_T"] = algorithm.ratio.ask(0, columns)
    factor = columns["factor_T"] if algorithm.importance_correction else 1.0
    loss = (algorithm.policy_loss.ask(0, columns) * factor * columns["w_T"]).sum()
    return torch.autograd.grad(loss, lp)[0]


UNBOUNDED = {"use": "token", "high": 1e9}


def test_trap_10_bypass_and_decoupled_have_the_same_gradient_at_the_first_step(golden):
    lp = golden.columns["prox"]
    bypass = gradient(golden, lp, policy_loss="weighted")
    decoupled = gradient(golden, lp, ratio="decoupled", importance_correction=[UNBOUNDED])
    torch.testing.assert_close(bypass, decoupled, atol=1e-12, rtol=0)
    # Clipped around the proximal policy nothing is clipped yet; clipped around the sampling one a good part is.
    assert int((decoupled == 0).sum()) < int((gradient(golden, lp) == 0).sum())


@pytest.mark.parametrize(
    "how",
    [
        {"policy_loss": "weighted"},
        {"ratio": "decoupled", "importance_correction": [UNBOUNDED]},
        {"ratio": "decoupled", "policy_loss": "weighted", "importance_correction": [UNBOUNDED]},
    ],
)
def test_trap_10_exactly_one_behaviour_denominator(golden, how):
    lp, behav = golden.columns["prox"], golden.columns["behav"]
    once, moved = gradient(golden, lp, behav, **how), gradient(golden, lp, behav - 0.25, **how)
    torch.testing.assert_close(moved, once * math.exp(0.25), atol=1e-12, rtol=0)


def test_trap_10_the_factor_is_of_the_proximal_weights_not_of_the_current(golden):
    algorithm = bind_algorithm(stage(ratio="decoupled", importance_correction=[UNBOUNDED]), {})
    made = with_factors(algorithm, golden.batch, 0)
    want = (golden.columns["prox"] - golden.columns["behav"]).exp()
    torch.testing.assert_close(made.sampled("factor"), want, atol=1e-12, rtol=0)


REQUIRED = {
    "heterogeneous": {"low": -3.0, "pivot": 0.0, "high": 1.0},
    "shaped_sources": {"of": ["expert"]},
    "entropy_band": {"low": 0.5, "high": 0.6},
    "widened_by_entropy": {"score": "format"},
}


def known(slot):
    """What the slot knows and this file can call."""
    return [
        n
        for n in list_names(slot)
        if n in REQUIRED or not any(o.required for o in read_signature(slot, n).options.values())
    ]


PAIRS = list(itertools.product(known(RatioUse), known(PolicyLossUse)))


@pytest.mark.parametrize(("ratio", "surrogate"), PAIRS)
def test_trap_09_lost_log_probabilities_and_gaps_of_100_nats_stay_finite(golden, ratio, surrogate):
    algorithm = bind_algorithm(stage(ratio=ratio, policy_loss={"use": surrogate, **REQUIRED.get(surrogate, {})}), {})
    behav, prox = golden.columns["behav"].clone(), golden.columns["prox"].clone()
    broken = torch.zeros(len(behav), dtype=torch.bool)
    behav[0] = prox[1] = behav[20] = -100.0
    behav[2], broken[2] = 0.0, True
    made = golden.batch.replaced(lp_behav=behav, lp_prox=prox, broken=broken)
    made = made.with_tokens(lp_mean_prox=prox - 3, entropy_prox=golden.columns["entropy"])
    made = with_weights(algorithm, with_advantages(algorithm, with_dropped(made, False), 0), 0, 9)
    lp = golden.columns["lp"]
    columns = view_columns(made, {"lp": lp, "lp_mean": lp - 3, "entropy": golden.columns["entropy"]})
    columns["step"] = 0
    columns["log_ratio_T"] = algorithm.ratio.ask(0, columns)
    loss_T = algorithm.policy_loss.ask(0, columns)
    loss = (loss_T.where(columns["w_T"] != 0, torch.zeros_like(loss_T)) * columns["w_T"]).sum()
    (grad,) = torch.autograd.grad(loss, lp)
    assert math.isfinite(float(loss.detach()))
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("name", known(ImportanceCorrectionUse))
def test_trap_09_no_correction_is_infinite(golden, name):
    behav, prox = golden.columns["behav"].clone(), golden.columns["prox"].clone()
    behav[0] = prox[1] = -math.inf
    broken = torch.zeros(len(behav), dtype=torch.bool)
    broken[0] = broken[1] = True
    behav[5], prox[6] = -100.0, -100.0
    made = golden.batch.replaced(lp_behav=behav, lp_prox=prox, broken=broken).with_tokens(
        advantage=golden.columns["value"]
    )
    got = bind(ImportanceCorrectionUse.model_validate(name)).ask(0, ColumnView(made, step=0, seed=1))
    assert bool(got.isfinite().all())
    assert bool((got >= 0).all())


@pytest.mark.parametrize("name", known(LossTermUse))
def test_trap_12_terms_lie_on_sampled_tokens_only(golden, name):
    """Whatever stands at tokens that the policy did not sample, no term of the loss sees it."""
    term = bind(LossTermUse.model_validate({"use": name, "coef": 1.0, **REQUIRED.get(name, {})}))
    made = golden.batch.with_tokens(
        advantage=golden.columns["value"],
        lp_base=golden.columns["ref"] - 0.1,
        lp_previous=golden.columns["prox"] - 0.2,
        lp_teacher=golden.columns["ref"] - 0.3,
    )
    noise = torch.where(made.tokens["learn"], 0.0, 7.0).double()
    loud = {k: v + noise if v.is_floating_point() else v for k, v in made.tokens.items()}
    noisy = Batch(made.segments, made.parents, made.leaves, loud, made.paths)
    terms = []
    for batch in (made, noisy):
        columns = view_columns(batch, {"lp": golden.columns["lp"], "entropy": golden.columns["entropy"]})
        columns["log_ratio_T"] = ratios.token(columns["lp_T"], columns["lp_behav_T"])
        columns["surprise_T"] = golden.columns["entropy"]  # of observations, which the loop gives at sampled tokens
        loss_T = term.ask(0, columns)
        assert len(loss_T) == sum(golden.counts)
        terms.append(loss_T.tolist())
    assert terms[0] == terms[1]
