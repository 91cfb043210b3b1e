"""The loss among kept tokens and the cross-entropy on observations, against direct formulas in float64."""

import copy
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from learning.algorithm import loss_terms
from learning.algorithm.composition import Algorithm, LossTerm
from learning.algorithm.loss import micro_loss, with_dropped, with_weights
from learning.algorithm.loss_aggregation import aggregation
from learning.algorithm.policy_losses.policy_gradient import clipped
from learning.algorithm.ratios.ratios import token
from learning.batch.batch_layout import forest
from learning.batch.micro_batches import split_micro_batches, statistics_of
from learning.batch.observations import count_observed, locate_observed
from learning.lookup import Bound
from learning.samples.engine_protocol import Turn
from learning.samples.kept_tokens import encode_kept
from learning.samples.sample import Sample

VOCABULARY, TEMPERATURE, COEF = 23, 0.8, 0.3


@pytest.fixture(scope="module")
def model():
    """One whose norms compute in float64, too."""
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_inner=48,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config).double().eval()


def algorithm(*terms):
    """Clipped policy gradient over the mean of all tokens, with further terms: function, coefficient, aggregation."""
    made = [
        LossTerm(Bound(f.__name__, f, {}), coef, None if weigh is None else Bound("w", weigh, {}), ())
        for f, coef, weigh in terms
    ]
    bound = (Bound("token", token, {}), Bound("clipped", clipped, {}), Bound("mean", aggregation.token_mean, {}))
    return Algorithm((), *bound, tuple(made))


def sample(number, prompt, ids, *, turns=(), keeps=0, group=0, source="policy"):
    """A completion; `keeps` is how many tokens each sampled one was drawn from, the lowest ids and itself."""
    one = Sample({"id": str(number)}, group, source, prompt, ids, [0.0] * len(ids), "stop", "", turns=list(turns))
    generator = torch.Generator().manual_seed(number)
    own = one.own
    one.logprobs = (-math.log(keeps or VOCABULARY) + 0.3 * torch.randn(len(ids), generator=generator)).tolist()
    one.logprobs = [lp if mine else 0.0 for lp, mine in zip(one.logprobs, own, strict=True)]
    if keeps:
        masks = [[v < keeps or v == i for v in range(VOCABULARY)] for i in ids]
        records = encode_kept(torch.tensor(masks).numpy())
        one.kept = [record if mine else "" for record, mine in zip(records, own, strict=True)]
    return one


EPISODES = [
    sample(0, [1, 2], [3, 9, 12, 13, 14, 7, 5], turns=[Turn(2, 3)], keeps=6),
    sample(1, [1, 2], [8, 4, 15, 20, 6, 21, 22, 19, 2], turns=[Turn(1, 1), Turn(2, 4)], keeps=11),
    sample(2, [4, 4, 6], [5, 17, 18, 9], turns=[Turn(1, 2)], group=1),
    sample(3, [4, 4, 6], [5, 3], group=1, keeps=4),
    sample(4, [4, 4, 6], [5, 3, 16], turns=[Turn(2, 1)], group=1, source="greedy"),
]


def prepare(how, samples=EPISODES, advantages=(0.5, -1.0, 2.0, 0.7, 0.0)):
    batch = with_dropped(forest(samples), False)
    values = torch.tensor(advantages[: len(samples)], dtype=torch.float64)
    return with_weights(how, batch.with_tokens(advantage=values[batch.path_T]), 0, 16)


def gradient(how, model, parts):
    model.zero_grad(set_to_none=True)
    for part in parts:
        micro_loss(how, model, part, step=0, temperature=TEMPERATURE)[0].backward()
    return [p.grad.clone() for p in model.parameters()]


def score_by_hand(model, one, *, cut=True):
    """log p of every completion token after the temperature, among its kept tokens, from a plain forward pass."""
    ids = torch.tensor([one.prompt_ids + one.completion_ids])
    logits = model(ids).logits[0, len(one.prompt_ids) - 1 : -1] / TEMPERATURE
    scores = []
    for place, (row, i) in enumerate(zip(logits, one.completion_ids, strict=True)):
        keeps = set(range(VOCABULARY))
        if cut and one.kept and one.kept[place]:
            keeps = {v for v in range(VOCABULARY) if v in KEPT[one.row["id"]] or v == i}
        scores.append(row[i] - row[sorted(keeps)].logsumexp(0))
    return torch.stack(scores)


KEPT = {"0": range(6), "1": range(11), "3": range(4)}


def loss_by_hand(model, *, coef, cut=True):
    """−A·ρ over the mean of the sampled tokens (nothing is clipped), and the mean surprise of the observed ones."""
    policy, surprise = [], []
    for one, advantage in zip(EPISODES[:4], (0.5, -1.0, 2.0, 0.7), strict=True):
        lp = score_by_hand(model, one, cut=cut)
        for place, mine in enumerate(one.own):
            if mine:
                ratio = (lp[place] - one.logprobs[place]).exp()
                policy.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
            else:
                surprise.append(-lp[place])
    assert len(policy) == 12
    assert len(surprise) == 10
    return torch.stack(policy).mean() + coef * torch.stack(surprise).mean()


def assert_same(got, want, atol=1e-12):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize("coef", [0.0, COEF])
def test_the_gradient_is_that_of_the_direct_formula(model, coef):
    how = algorithm((loss_terms.observation_cross_entropy, coef, aggregation.observed_mean))
    want = torch.autograd.grad(loss_by_hand(model, coef=coef), list(model.parameters()))
    for parts in ([prepare(how)], split_micro_batches(prepare(how), 12)):
        assert_same(gradient(how, model, parts), want)
    loss, columns = micro_loss(how, model, prepare(how), step=0, temperature=TEMPERATURE)
    assert loss.item() == pytest.approx(loss_by_hand(model, coef=coef).item(), abs=1e-12)
    observed = [n for n in columns["surprise_T"].tolist() if n]
    assert len(observed) == (4 if coef else 0)


def test_kept_tokens_matter_for_this_gradient(model):
    how = algorithm()
    whole = torch.autograd.grad(loss_by_hand(model, coef=0.0, cut=False), list(model.parameters()))
    got = gradient(how, model, [prepare(how)])
    assert max(float((a - b).abs().max()) for a, b in zip(got, whole, strict=True)) > 1e-3


def test_without_a_coefficient_the_update_is_bit_equal(model):
    """Also in float32, where other rows in a product of matrices would round otherwise."""
    term = (loss_terms.observation_cross_entropy, 0.0, aggregation.observed_mean)
    for one in (model, copy.deepcopy(model).float()):
        plain, off = (gradient(how, one, [prepare(how)]) for how in (algorithm(), algorithm(term)))
        assert all(torch.equal(a, b) for a, b in zip(plain, off, strict=True))
    on = algorithm((loss_terms.observation_cross_entropy, COEF, aggregation.observed_mean))
    got = gradient(on, model, [prepare(on)])
    plain = gradient(algorithm(), model, [prepare(algorithm())])
    assert max(float((a - b).abs().max()) for a, b in zip(got, plain, strict=True)) > 1e-3


def test_observed_tokens_follow_the_turn_that_was_answered():
    batch = forest(EPISODES)
    at_O, before_O = locate_observed(batch)
    tokens = batch.packed.input_ids_M[at_O].tolist()
    own = batch.packed.input_ids_M[batch.sampled_T][before_O].tolist()
    assert (tokens, own) == (
        [12, 13, 14, 4, 6, 21, 22, 19, 17, 18],
        [9, 9, 9, 8, 20, 20, 20, 20, 5, 5],
    )
    assert count_observed(batch).sum() == 10
    # Of some paths only: none of another path's observations is attached to their tokens.
    part = batch.take([3, 1])
    assert part.packed.input_ids_M[locate_observed(part)[0]].tolist() == [4, 6, 21, 22, 19]
    assert forest(EPISODES[3:4]).take([0]).tokens["observed"].tolist() == [False] * 5


def test_an_observation_before_any_own_token_and_a_new_context_are_not_predicted():
    shown_first = sample(5, [1, 2], [12, 13, 9], turns=[Turn(0, 2)])
    rebuilt = sample(6, [1, 3], [9, 12, 13, 7], turns=[Turn(1, 2, rebuilt=True)])
    assert [len(locate_observed(forest(some))[0]) for some in ([shown_first], [rebuilt])] == [0, 0]
    assert len(locate_observed(forest([EPISODES[0], shown_first, rebuilt]))[0]) == 3


def test_dropped_turns_leave_the_mean():
    batch = with_dropped(forest(EPISODES[:2]), False)
    dropped = batch.sampled("dropped").clone()
    dropped[batch.path_T == 1] = True
    batch = batch.replaced(dropped=dropped)
    weights = aggregation.observed_mean(batch)
    assert weights[batch.path_T == 0].tolist() == [0, 1, 0, 0]
    assert weights[batch.path_T == 1].sum() == 0
    counted = aggregation.observed_mean(batch, count_dropped=True)
    assert counted[batch.path_T == 0].tolist() == [0, 3 / 8, 0, 0]


def test_references_and_the_weights_before_the_update_are_among_the_same_tokens(model):
    got = statistics_of(forest(EPISODES), model, ("lp",), max_tokens=12, temperature=TEMPERATURE)["lp"]
    with torch.no_grad():
        want = [lp for one in EPISODES[:4] for lp, mine in zip(score_by_hand(model, one), one.own, strict=True) if mine]
    torch.testing.assert_close(got, torch.stack(want), atol=1e-12, rtol=0)
