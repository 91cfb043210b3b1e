"""Every loss of pairs against its formula as written, value and gradient, in float64."""

import inspect
import math
from types import SimpleNamespace

import pytest
import torch

from learning.lookup import bind, find
from learning.models.sharded_model import Trained
from learning.preference import pair_losses as preferences
from learning.preference.batches import Pair
from learning.preference.loss import Term, add_gradient, compute_implicit_rewards, compute_logprobs, mismatch_pairs
from schemas.errors import StepError
from schemas.signatures import list_names
from schemas.use import PairLossUse

N = 6


def columns(seed=0):
    """Plausible log-probabilities of three policies, lengths, scores and margins of N pairs."""
    source = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return torch.rand(N, generator=source, dtype=torch.float64) * (high - low) + low

    values = {f"{side}{of}": draw(-9, -1) for side in ("chosen", "rejected") for of in ("", "_ref", "_prev")}
    values |= {f"{side}_tokens": draw(3, 9).round() for side in ("chosen", "rejected")}
    values |= {"chosen_score": draw(0.5, 1), "rejected_score": draw(0, 0.5), "margin": draw(0.1, 2)}
    values |= {f"{side}_present": torch.ones(N, dtype=torch.float64) for side in ("chosen", "rejected")}
    return SimpleNamespace(**values)


def asked(function, c, **more):
    """What a function asks for, of columns `c`."""
    supplies = {**more, **{f"{k}_{s}": v for k, v in vars(c).items() for s in "PB"}}
    parameters = inspect.signature(function).parameters.values()
    return [supplies[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def sig(x):
    return 1 / (1 + torch.exp(-x))


def ratios(c):
    return c.chosen - c.chosen_ref, c.rejected - c.rejected_ref


def h(c):
    w, r = ratios(c)
    return w - r


def means(c):
    return c.chosen / c.chosen_tokens, c.rejected / c.rejected_tokens


def dpo_norm(c):
    w, r = ratios(c)
    return -torch.log(sig(5 * (w / c.chosen_tokens - r / c.rejected_tokens)))


def dpop(c):
    fallen = torch.maximum(torch.zeros(N, dtype=torch.float64), c.chosen_ref - c.chosen)
    return -torch.log(sig(0.3 * (h(c) - 5 * fallen)))


def robust(c):
    right, wrong = torch.log(sig(0.1 * h(c))), torch.log(sig(-0.1 * h(c)))
    return (-0.8 * right + 0.2 * wrong) / 0.6


def ipo(c):
    w, r = ratios(c)
    return (w / c.chosen_tokens - r / c.rejected_tokens - 1 / 0.4) ** 2


def exo(c):
    p = sig(0.3 * h(c))
    return p * torch.log(p / 0.99) + (1 - p) * torch.log((1 - p) / 0.01)


def nca(c):
    w, r = (0.2 * x for x in ratios(c))
    return -torch.log(sig(w)) - 0.5 * torch.log(sig(-w)) - 0.5 * torch.log(sig(-r))


def apo_zero(c):
    w, r = ratios(c)
    return 1 - sig(0.3 * w) + sig(0.3 * r)


def apo_down(c):
    w, r = ratios(c)
    return sig(0.3 * w) + 1 - sig(0.3 * (w - r))


def discopop(c):
    x = 0.05 * h(c)
    share = sig(x / 0.05)
    return -torch.log(sig(x)) * (1 - share) + torch.exp(-x) * share


def kto(c):
    w, r = ratios(c)
    return (1.5 * (1 - sig(0.1 * (w - 0.7))) + 0.5 * (1 - sig(0.1 * (0.7 - r)))) / 2


def bco(c):
    w, r = (0.1 * x for x in ratios(c))
    mean = (w.detach().sum() + r.detach().sum()) / (2 * N)
    return -torch.log(sig(w - mean)) - torch.log(sig(-(r - mean)))


def aot(c):
    gaps, theirs = torch.sort(c.chosen - c.rejected)[0], torch.sort(c.chosen_ref - c.rejected_ref)[0]
    return -0.9 * torch.log(sig(0.2 * (gaps - theirs))) - 0.1 * torch.log(sig(-0.2 * (gaps - theirs)))


def aot_unpaired(c):
    w, r = ratios(c)
    return -torch.log(sig(0.2 * (torch.sort(w)[0] - torch.sort(r)[0])))


def simpo(c):
    w, r = means(c)
    return -torch.log(sig(2.5 * w - 2.5 * r - 1.4))


def orpo(c):
    w, r = means(c)
    odds_w, odds_r = (torch.exp(x) / (1 - torch.exp(x)) for x in (w, r))
    return -w + 0.25 * -torch.log(sig(torch.log(odds_w / odds_r)))


def sppo(c):
    w, r = c.chosen - c.chosen_prev, c.rejected - c.rejected_prev
    return (w - 3 * (c.chosen_score - 0.5)) ** 2 + (r - 3 * (c.rejected_score - 0.5)) ** 2


def sppo_hard(c):
    w, r = c.chosen - c.chosen_prev, c.rejected - c.rejected_prev
    return (w - 0.5 / 0.1) ** 2 + (r + 0.5 / 0.1) ** 2


def inpo(c):
    d, ref, prev = (getattr(c, f"chosen{x}") - getattr(c, f"rejected{x}") for x in ("", "_ref", "_prev"))
    return (d - 0.3 / 2 * ref - (2 - 0.3) / 2 * prev - 1 / 4) ** 2


def nash_md(c):
    mixed_w = 0.15 * c.chosen_ref + 0.85 * c.chosen_prev
    mixed_r = 0.15 * c.rejected_ref + 0.85 * c.rejected_prev
    return ((c.chosen - mixed_w) - (c.rejected - mixed_r) - (c.chosen_score - c.rejected_score) / 2) ** 2


def rebel(c):
    return ((c.chosen - c.chosen_prev - c.rejected + c.rejected_prev) / 0.5 - c.margin) ** 2


CASES = {
    "dpo": ({"beta": 0.2}, lambda c: -torch.log(sig(0.2 * h(c)))),
    "dpo smoothed": (
        {"beta": 0.2, "label_smoothing": 0.1},
        lambda c: -0.9 * torch.log(sig(0.2 * h(c))) - 0.1 * torch.log(sig(-0.2 * h(c))),
    ),
    "dpo forward_kl": (
        {"divergence": "forward_kl"},
        lambda c: -torch.log(sig(0.1 * (torch.exp(c.rejected_ref - c.rejected) - torch.exp(c.chosen_ref - c.chosen)))),
    ),
    "dpo js": (
        {"divergence": "js"},
        lambda c: -torch.log(sig(0.1 * (torch.log(2 * sig(ratios(c)[0])) - torch.log(2 * sig(ratios(c)[1]))))),
    ),
    "dpo alpha": (
        {"divergence": "alpha", "alpha": 0.3},
        lambda c: (
            -torch.log(
                sig(0.1 * ((1 - torch.exp(-0.3 * ratios(c)[0])) / 0.3 - (1 - torch.exp(-0.3 * ratios(c)[1])) / 0.3))
            )
        ),
    ),
    "dpo_norm": ({"beta": 5.0}, dpo_norm),
    "dpop": ({"penalty": 5.0}, dpop),
    "odpo": ({"alpha": 0.7}, lambda c: -torch.log(sig(0.1 * h(c) - 0.7 * torch.log(c.margin)))),
    "odpo identity": (
        {"alpha": 0.7, "scaling": "identity"},
        lambda c: -torch.log(sig(0.1 * h(c) - 0.7 * c.margin)),
    ),
    "robust": ({"label_smoothing": 0.2}, robust),
    "hinge": ({"beta": 0.4}, lambda c: torch.maximum(torch.zeros(N, dtype=torch.float64), 1 - 0.4 * h(c))),
    "ipo": ({"beta": 0.2}, ipo),
    "ipo sums": ({"beta": 0.2, "per_token": False}, lambda c: (h(c) - 1 / 0.4) ** 2),
    "exo": ({"beta": 0.3, "label_smoothing": 0.01}, exo),
    "nca": ({"beta": 0.2}, nca),
    "apo_zero": ({"beta": 0.3}, apo_zero),
    "apo_down": ({"beta": 0.3}, apo_down),
    "discopop": ({}, discopop),
    "kto": ({"desirable_weight": 1.5, "undesirable_weight": 0.5}, kto),
    "bco": ({}, bco),
    "aot": ({"beta": 0.2, "label_smoothing": 0.1}, aot),
    "aot_unpaired": ({"beta": 0.2}, aot_unpaired),
    "nll": ({}, lambda c: -means(c)[0]),
    "nll per token": ({"per_token": True}, lambda c: -c.chosen * N / c.chosen_tokens.sum()),
    "simpo": ({"beta": 2.5, "gamma": 1.4}, simpo),
    "cpo": ({"alpha": 0.5}, lambda c: -torch.log(sig(0.1 * (c.chosen - c.rejected))) - 0.5 * means(c)[0]),
    "orpo": ({"beta": 0.25}, orpo),
    "sppo": ({"eta": 3.0}, sppo),
    "sppo_hard": ({"eta": 10.0}, sppo_hard),
    "inpo": ({"eta": 2.0, "tau": 0.3}, inpo),
    "nash_md": ({"eta": 2.0, "tau": 0.3}, nash_md),
    "rebel": ({"eta": 0.5}, rebel),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_its_formula_and_so_is_its_gradient(case):
    options, direct = CASES[case]
    function = find(PairLossUse(use=case.partition(" ")[0]))
    results = []
    for formula in (
        lambda c: function(*asked(function, c, kl=torch.tensor(0.7, dtype=torch.float64), state={}), **options),
        direct,
    ):
        c = columns()
        c.chosen.requires_grad_()
        c.rejected.requires_grad_()
        loss_P = formula(c)
        weights = torch.arange(1, N + 1, dtype=torch.float64)
        pulls = torch.autograd.grad((loss_P * weights).sum(), [c.chosen, c.rejected], allow_unused=True)
        results.append([loss_P, *(torch.zeros(N) if p is None else p for p in pulls)])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here.double(), there.double(), rtol=1e-12, atol=1e-12)


def test_every_loss_is_proven():
    assert {case.partition(" ")[0] for case in CASES} == set(list_names(PairLossUse))


def test_policy_and_reference_equal_gives_known_numbers():
    c = columns()
    c.chosen, c.rejected = c.chosen_ref.clone(), c.rejected_ref.clone()

    def at(name, **options):
        function = find(PairLossUse(use=name))
        return function(*asked(function, c, kl=torch.tensor(0.0), state={}), **options).mean().item()

    assert at("dpo") == pytest.approx(math.log(2), abs=1e-15)
    assert at("dpo", label_smoothing=0.3) == pytest.approx(math.log(2), abs=1e-15)
    assert at("robust") == pytest.approx(math.log(2), abs=1e-15)
    assert at("hinge") == 1
    assert at("ipo", beta=0.1) == pytest.approx(25, abs=1e-12)
    assert at("kto") == at("apo_zero") / 2 == at("apo_down") / 2 == 0.5
    assert at("nca") == pytest.approx(2 * math.log(2), abs=1e-15)
    assert at("aot") == at("aot_unpaired", beta=0.0) == pytest.approx(math.log(2), abs=1e-15)


def test_losses_stay_finite_far_away():
    c = columns()
    c.chosen = torch.tensor([-1e4] * N, dtype=torch.float64, requires_grad=True)
    c.rejected = torch.zeros(N, dtype=torch.float64, requires_grad=True)
    for name in ("dpo", "robust", "hinge", "exo", "nca", "kto", "simpo", "cpo", "orpo", "aot", "bco", "apo_zero"):
        function = find(PairLossUse(use=name))
        loss_P = function(*asked(function, c, kl=torch.tensor(0.0), state={}))
        pulls = torch.autograd.grad(loss_P.sum(), [c.chosen, c.rejected])
        assert all(bool(x.isfinite().all()) for x in (loss_P, *pulls)), name


def test_ipo_means_do_not_grow_with_length_and_sums_do():
    short, long = columns(), columns()
    for name in ("chosen", "rejected", "chosen_ref", "rejected_ref", "chosen_tokens", "rejected_tokens"):
        setattr(long, name, 10 * getattr(short, name))
    loss = [preferences.ipo(*asked(preferences.ipo, c)) for c in (short, long)]
    torch.testing.assert_close(*loss, rtol=1e-12, atol=0)
    sums = [preferences.ipo(*asked(preferences.ipo, c), per_token=False) for c in (short, long)]
    assert not torch.allclose(*sums)


def test_robust_is_unbiased_under_flipped_labels():
    c, flipped = columns(), columns()
    flipped.chosen, flipped.rejected = c.rejected, c.chosen
    flipped.chosen_ref, flipped.rejected_ref = c.rejected_ref, c.chosen_ref
    loss, other = (preferences.robust(*asked(preferences.robust, x), label_smoothing=0.2) for x in (c, flipped))
    clean = preferences.dpo(*asked(preferences.dpo, c))
    torch.testing.assert_close(0.8 * loss + 0.2 * other, clean, rtol=1e-12, atol=1e-12)


def test_bco_shifts_by_the_mean_of_all_it_has_seen():
    state, seen = {}, []
    for seed in (1, 2, 3):
        c = columns(seed)
        preferences.bco(*asked(preferences.bco, c, state=state))
        seen += [0.1 * x for x in ratios(c)]
        assert state["mean"] == pytest.approx(float(torch.cat(seen).mean()), abs=1e-14)
    assert state["count"] == 6 * N


PAIRS = [
    Pair("a", [5, 6, 7, 8], [20, 21, 1], [22, 1], 0.5),
    Pair("b", [9], [23, 24, 25, 26, 1], [27, 1], 0.1),
    Pair("c", [5, 6, 7, 8], [28, 1], [29, 30, 31, 1], 1.0),
    Pair("d", [10, 11], [32, 1], [33, 34, 1], 2.0),
]


def test_completions_are_summed_over_their_own_tokens_and_prompts_are_shared(tiny_policy):
    model = tiny_policy.model
    lp_P2 = compute_logprobs(model, PAIRS)
    for pair, sums in zip(PAIRS, lp_P2, strict=True):
        for side, total in zip((pair.chosen, pair.rejected), sums, strict=True):
            ids = torch.tensor([pair.prompt + side])
            logp = model(ids).logits[0].log_softmax(-1)
            direct = sum(logp[t - 1, ids[0, t]] for t in range(len(pair.prompt), ids.shape[1]))
            torch.testing.assert_close(total, direct, rtol=0, atol=2e-5)


def terms(*uses):
    return [Term(bind(PairLossUse(**u), f"loss.{i}"), u.get("weight", 1.0)) for i, u in enumerate(uses)]


def have():
    made = {"chosen_tokens_B": torch.tensor([3.0, 5, 2, 2]), "rejected_tokens_B": torch.tensor([2.0, 2, 4, 3])}
    made |= {f"{side}_ref_B": torch.tensor([-9.0, -20, -8, -9]) for side in ("chosen", "rejected")}
    made |= {f"{side}_present_B": torch.ones(4) for side in ("chosen", "rejected")}
    return {**made, "margin_B": torch.tensor([0.5, 0.1, 1.0, 2.0]), "kl": torch.tensor(0.2), "states": {}}


MIXES = {
    "separable": [{"use": "dpo", "weight": 0.8}, {"use": "nll", "per_token": True, "weight": 0.2}],
    "kto": [{"use": "kto"}],
    "comparing": [{"use": "aot"}, {"use": "bco", "weight": 0.5}],
    "both": [{"use": "aot_unpaired", "beta": 0.3}, {"use": "ipo", "weight": 0.1}],
}


@pytest.mark.parametrize("mix", MIXES)
def test_the_gradient_does_not_depend_on_the_forward_passes(tiny_policy, mix):
    model, gradients = tiny_policy.model, []
    for budget in (10_000, 20, 1):
        model.zero_grad()
        states = {}
        loss, lp_B2 = add_gradient(terms(*MIXES[mix]), Trained(model), PAIRS, {**have(), "states": states}, 0, budget)
        gradients.append((loss, lp_B2, states, [p.grad.clone() for p in model.parameters()]))
    scale = max(float(g.abs().max()) for g in gradients[0][3])
    assert scale > 1e-3
    for loss, lp_B2, states, grads in gradients[1:]:
        assert loss == pytest.approx(gradients[0][0], rel=1e-6)
        torch.testing.assert_close(lp_B2, gradients[0][1], rtol=0, atol=2e-5)
        assert [s["count"] for s in states.values()] == [s["count"] for s in gradients[0][2].values()]
        for one, other in zip(grads, gradients[0][3], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-6 * max(1.0, scale))


def test_the_order_of_pairs_does_not_matter(tiny_policy):
    model, gradients = tiny_policy.model, []
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        model.zero_grad()
        columns_B = {k: v[order] if k.endswith("_B") else v for k, v in have().items()}
        loss, _ = add_gradient(terms(*MIXES["both"]), Trained(model), [PAIRS[i] for i in order], columns_B, 0, 20)
        gradients.append((loss, [p.grad.clone() for p in model.parameters()]))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-6)
    for one, other in zip(gradients[0][1], gradients[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)


def test_implicit_rewards_are_against_what_was_asked_for():
    lp_B2 = torch.tensor([[-3.0, -4.0]] * 4)
    rewards_B2 = compute_implicit_rewards(terms({"use": "dpo", "beta": 0.5}), lp_B2, have(), 0)
    assert rewards_B2[0].tolist() == [3.0, 2.5]
    lonely = {k: v for k, v in have().items() if "_ref" not in k}
    rewards_B2 = compute_implicit_rewards(terms({"use": "simpo", "beta": 2.0}), lp_B2, lonely, 0)
    assert rewards_B2[0].tolist() == [-2.0, -4.0]


def test_a_prompt_never_gets_its_own_completions_as_strange_ones():
    strange = mismatch_pairs(PAIRS, 128)
    assert [(s.prompt, s.chosen) for s in strange] == [
        (PAIRS[0].prompt, PAIRS[1].chosen),
        (PAIRS[1].prompt, PAIRS[2].chosen),
        (PAIRS[2].prompt, PAIRS[3].chosen),
        (PAIRS[3].prompt, PAIRS[0].chosen),
    ]
    assert mismatch_pairs(PAIRS, 7)[0].chosen == PAIRS[3].chosen  # those of b would be too long
    with pytest.raises(StepError, match="finds no other prompt"):
        mismatch_pairs([PAIRS[0], PAIRS[2]], 128)


def test_a_loss_must_give_one_number_per_pair(tiny_policy):
    whole = Term(bind(PairLossUse(use="tests.learning.preference.test_pair_losses:scalar")), 1.0)
    with pytest.raises(StepError, match=r"gives \(\) for 4 pairs"):
        add_gradient([whole], Trained(tiny_policy.model), PAIRS, have(), 0, 1000)


def scalar(chosen_P):
    return chosen_P.sum()
