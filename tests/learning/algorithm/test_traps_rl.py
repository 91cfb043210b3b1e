"""Traps into which RL trainers have fallen, one test each; the numbers are those of the list of traps."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from learning.algorithm.advantages import normalisation as advantages
from learning.algorithm.composition import Algorithm, LossTerm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.algorithm.loss_aggregation import aggregation as weighing
from learning.algorithm.loss_terms import kl
from learning.algorithm.policy_losses.policy_gradient import clipped
from learning.algorithm.ratios.ratios import sequence, token
from learning.batch import columns
from learning.batch.batch import Batch
from learning.batch.batch_layout import single_turn
from learning.batch.micro_batches import split_micro_batches, split_mini_batches
from learning.collection import group_filters as filters
from learning.collection.prompt_samplers import choose_prompts
from learning.lookup import Bound
from learning.models.packed import pack, packed_logprobs
from learning.rl.sampling_slots import keep_groups
from learning.samples.engine_protocol import Generation
from learning.samples.sample import Sample
from learning.sampling.sampler import score, stream

VOCABULARY = 29


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen3Config(
        vocab_size=VOCABULARY, num_key_value_heads=2, head_dim=8, max_position_embeddings=96, pad_token_id=0, **shape
    )
    return AutoModelForCausalLM.from_config(config)


def algorithm(ratio=token, weigh=weighing.token_mean, coef=0.3, **surrogate):
    term = LossTerm(Bound("entropy", lambda entropy_T: -entropy_T, {}), coef, None)
    ops = (Bound("center", advantages.center, {}), Bound("scale", advantages.scale, {}))
    bound = (Bound("ratio", ratio, {}), Bound("clipped", clipped, surrogate), Bound("weigh", weigh, {}))
    return Algorithm(ops, *bound, (term,))


def random_batch(lengths=((3, 9, 1), (5, 2, 2, 17)), prompts=(4, 11), seed=0):
    generator = torch.Generator().manual_seed(seed)

    def ids(n):
        return torch.randint(1, VOCABULARY, (n,), generator=generator).tolist()

    def lps(n):
        return (-math.log(VOCABULARY) + 0.3 * torch.randn(n, generator=generator)).tolist()

    groups = [[Generation(ids(n), lps(n), "stop" if n % 2 else "length") for n in ns] for ns in lengths]
    batch = single_turn([ids(n) for n in prompts], groups)
    return batch.with_paths(reward=torch.rand(batch.num_paths, generator=generator, dtype=torch.float64))


def ready(made, how, mask_truncated=False):
    batch = with_advantages(how, with_dropped(made, mask_truncated), 0)
    return with_weights(how, batch, 0, 32)


def gradient(how, model, parts):
    model.zero_grad(set_to_none=True)
    total = 0.0
    for part in parts:
        loss, _ = micro_loss(how, model, part, step=0, temperature=1.0)
        loss.backward()
        total += float(loss.detach())
    return total, [p.grad.clone() for p in model.parameters()]


def assert_same(got, want, atol=1e-6):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize("weigh", [weighing.token_mean, weighing.sequence_mean, weighing.constant])
def test_trap_01_gradient_does_not_depend_on_the_micro_batches(model, weigh):
    how = algorithm(weigh=weigh)
    batch = ready(random_batch(), how)
    whole = gradient(how, model, [batch])
    for budget in (1, 20, 30, 40, 10_000):
        parts = split_micro_batches(batch, budget)
        assert all(part.num_paths == 1 or len(part.packed.input_ids_M) <= budget for part in parts)
        assert sum(len(part.sampled_T) for part in parts) == len(batch.sampled_T)
        loss, grads = gradient(how, model, parts)
        assert loss == pytest.approx(whole[0], abs=1e-6)
        assert_same(grads, whole[1])
    assert len(split_micro_batches(batch, 1)) == batch.num_paths
    assert len(split_micro_batches(batch, 10_000)) == 1


def test_trap_01_the_loss_of_parts_is_not_their_mean():
    batch = with_dropped(random_batch(), False)
    whole = weighing.token_mean(batch)
    assert float(whole.sum()) == pytest.approx(1.0)
    parts = [weighing.token_mean(batch.take([p])).sum() for p in range(batch.num_paths)]
    assert float(sum(parts)) == pytest.approx(batch.num_paths)


@pytest.mark.parametrize(
    ("weigh", "ratio"), [(weighing.sequence_mean, 1.0), (weighing.token_mean, 10.0), (weighing.constant, 10.0)]
)
def test_trap_02_length_bias_is_the_declared_one(weigh, ratio):
    batch = with_dropped(random_batch(lengths=((5, 50),), prompts=(3,)), False)
    w = weigh(batch, 64) if weigh is weighing.constant else weigh(batch)
    short, long = (float(w[batch.path_T == p].sum()) for p in (0, 1))
    assert long / short == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize(
    ("weigh", "count", "expected"),
    [
        # Lengths 4 (truncated), 3 and 1: weight of one token of the second completion.
        (weighing.token_mean, False, 1 / 4),
        (weighing.token_mean, True, 1 / 8),
        (weighing.sequence_mean, False, 1 / 3 / 2),
        (weighing.sequence_mean, True, 1 / 3 / 3),
        (weighing.constant, False, 1 / 2 / 10),
        (weighing.constant, True, 1 / 3 / 10),
    ],
)
def test_trap_03_sum_and_denominator_use_the_declared_masks(weigh, count, expected):
    batch = with_dropped(random_batch(lengths=((4, 3, 1),), prompts=(2,)), True)
    w = (weigh(batch, 10, count_dropped=count)) if weigh is weighing.constant else weigh(batch, count_dropped=count)
    assert w.tolist()[:4] == [0.0] * 4
    assert float(w[4]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weigh", [weighing.token_mean, weighing.sequence_mean, weighing.constant])
def test_trap_03_all_masked_is_zero_and_finite(model, weigh):
    how = algorithm(weigh=weigh)
    batch = ready(random_batch(lengths=((4, 2), (6, 2))), how, mask_truncated=True)
    loss, grads = gradient(how, model, [batch])
    assert loss == 0.0
    assert all(bool((g == 0).all()) for g in grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stat", ["mean", "loo", "median"])
@pytest.mark.parametrize("size", [1, 7, 8])
def test_trap_04_equal_rewards_give_exactly_nothing(dtype, stat, size):
    batch = random_batch(lengths=((2,) * size, (1, 1)), prompts=(2, 2))
    column = columns.of_rewards(batch)
    values = torch.tensor([0.1] * size + [0.0, 1.0], dtype=dtype)
    column = advantages.Column(values, values, column.path_X, "path")
    centered = advantages.center(column, batch, stat=stat)
    for spread in ("std", "mad", "mean"):
        for of in ("self", "raw"):
            scaled = advantages.scale(centered, batch, stat=spread, of=of, epsilon=0.0)
            assert scaled.values_X[:size].tolist() == [0.0] * size
            assert bool(scaled.values_X.isfinite().all())
    assert float(advantages.scale(centered, batch).values_X[-1]) > 0.1


def test_trap_05_the_filter_sees_raw_scores_only():
    right = Bound("exact", lambda completions: [0.0, 0.0, 0.0, 1.0, 0.0], {})
    brevity = Bound("brevity", lambda completions: [0.1 * len(t) for t in completions], {})
    places = zip((0, 0, 0, 1, 1), ("a", "aa", "aaa", "a", "a"), strict=True)
    samples = [Sample({"id": str(g)}, g, "policy", [1], [1], [0.0], "stop", text) for g, text in places]
    score([right, brevity], [1.0, 1.0], samples, {"step": 0})
    assert [t.reward for t in samples] == pytest.approx([0.1, 0.2, 0.3, 1.1, 0.1])
    batch = keep_groups(Bound("reward_variance", filters.reward_variance, {}), samples, 0, {}, {})
    assert batch.paths["path"].tolist() == [3, 4]


def test_trap_09_lost_log_probabilities_give_finite_gradients(model):
    made = random_batch()
    groups = [[Generation([1, 2, 3], [-1.0, -math.inf, math.nan], "stop"), Generation([4], [-100.0], "stop")]]
    broken = single_turn([[5, 6]], groups).with_paths(reward=torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert broken.tokens["broken"].sum() == 2
    for ratio in (token, sequence):
        how = algorithm(ratio)
        loss, grads = gradient(how, model, [ready(broken, how)])
        assert math.isfinite(loss)
        assert all(bool(g.isfinite().all()) for g in grads)
        assert ready(broken, how).sampled("w").tolist() == [0.5, 0.0, 0.0, 0.5]
    assert made.tokens["broken"].sum() == 0


def test_trap_11_gradient_of_each_kl_estimator_in_full_expectation():
    generator = torch.Generator().manual_seed(5)
    logits, other, sampler = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(3))
    ref, behav = other.log_softmax(-1), sampler.log_softmax(-1)

    def of_loss(term, lp_behav):
        z = logits.clone().requires_grad_()
        lp = z.log_softmax(-1)
        own = lp.detach() if lp_behav is None else lp_behav
        (own.exp() * term(lp, ref, own)).sum().backward()
        return z.grad

    def exact(divergence):
        z = logits.clone().requires_grad_()
        divergence(z.log_softmax(-1)).backward()
        return z.grad

    reverse = exact(lambda lp: (lp.exp() * (lp - ref)).sum())
    forward = exact(lambda lp: (ref.exp() * (ref - lp)).sum())
    on = {e: of_loss(lambda *a, e=e: kl(*a, estimator=e), None) for e in ("k1", "k2", "k3")}
    torch.testing.assert_close(on["k1"], torch.zeros(6, dtype=torch.float64), atol=1e-14, rtol=0)
    torch.testing.assert_close(on["k2"], reverse, atol=1e-14, rtol=0)
    torch.testing.assert_close(on["k3"], forward, atol=1e-14, rtol=0)
    for estimator in ("k1", "k3"):
        off = of_loss(lambda *a, e=estimator: kl(*a, estimator=e, importance=True), behav)
        torch.testing.assert_close(off, reverse, atol=1e-14, rtol=0)


def test_trap_12_nothing_but_sampled_tokens_enters_the_loss(model):
    how = algorithm()
    batch = ready(random_batch(), how)
    want = gradient(how, model, [batch])
    noise = torch.where(batch.tokens["learn"], 0.0, 7.0).double()
    moved = Batch(
        batch.segments,
        batch.parents,
        batch.leaves,
        {**batch.tokens, **{k: batch.tokens[k] + noise for k in ("lp_behav", "advantage", "w", "w.0")}},
        batch.paths,
    )
    got = gradient(how, model, [moved])
    assert got[0] == want[0]
    assert_same(got[1], want[1], atol=0)


def chain(observed):
    """One path: prompt, a sampled turn, `observed` tokens from outside, a second sampled turn."""
    sizes, learn = [2, 3, observed, 4], [False, True, False, True]
    flags = [flag for size, flag in zip(sizes, learn, strict=True) for flag in [flag] * size]
    size = len(flags)
    zero = torch.zeros(1, dtype=torch.long)
    return Batch(
        [list(range(1, n + 1)) for n in sizes],
        [-1, 0, 1, 2],
        [3],
        {
            "learn": torch.tensor(flags),
            "owner": torch.zeros(size, dtype=torch.long),
            "lp_behav": torch.zeros(size).double(),
            "broken": torch.zeros(size, dtype=torch.bool),
        },
        {"path": zero, "group": zero, "episode": zero, "reward": torch.ones(1).double(), "truncated": zero.bool()},
    )


def test_trap_13_returns_cross_observations():
    want = [0.5 ** (6 - i) for i in range(7)]
    for observed in (0, 1, 5):
        batch = chain(observed)
        column = advantages.reward_to_go(columns.of_rewards(batch), batch, gamma=0.5)
        torch.testing.assert_close(column.values_X, torch.tensor(want).double(), atol=1e-15, rtol=0)


def test_trap_16_the_trained_tokens_are_the_sampled_ones_byte_for_byte():
    first = [Generation([7, 8, 9], [0.0] * 3, "stop"), Generation([9], [0.0], "stop")]
    groups = [first, [Generation([1, 1], [0.0] * 2, "length")]]
    batch = single_turn([[1, 2, 3], [7, 8]], groups)
    assert batch.packed.input_ids_M[batch.sampled_T].tolist() == [7, 8, 9, 9, 1, 1]
    assert batch.path_T.tolist() == [0, 0, 0, 1, 2, 2]
    taken = batch.take([2, 0])
    assert [taken.packed.input_ids_M[taken.sampled_T[taken.path_T == p]].tolist() for p in (0, 1)] == [
        [1, 1],
        [7, 8, 9],
    ]
    turns = chain(3)
    assert turns.packed.input_ids_M[turns.sampled_T].tolist() == [1, 2, 3, 1, 2, 3, 4]


def test_trap_17_the_stop_token_is_trained_on_once(model):
    eos = 0
    batch = single_turn(
        [[3, 4]], [[Generation([5, 6, eos], [-1.0, -2.0, -3.0], "stop"), Generation([5], [-1.0], "length")]]
    )
    ids = batch.packed.input_ids_M
    assert (ids[batch.sampled_T] == eos).sum() == 1
    assert (ids == eos).sum() == 1
    assert batch.tokens["lp_behav"][ids == eos].tolist() == [-3.0]
    with torch.no_grad():
        logp, _ = packed_logprobs(model, batch.packed)
        want = model(torch.tensor([[3, 4, 5, 6]])).logits[0, -1].log_softmax(-1)[eos]
    assert float(logp[ids == eos][0]) == pytest.approx(float(want), abs=1e-5)


def test_trap_18_alone_packed_and_left_padded_agree(model):
    generator = torch.Generator().manual_seed(8)
    paths = [torch.randint(1, VOCABULARY, (n,), generator=generator).tolist() for n in (3, 11, 6, 1, 30)]
    with torch.no_grad():
        together, _ = packed_logprobs(model, pack(paths, [-1] * len(paths)))
        width = max(map(len, paths))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in paths])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in paths])
        logits = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
        padded = logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        for row, (path, mine) in enumerate(zip(paths, together.split([len(p) for p in paths]), strict=True)):
            alone, _ = packed_logprobs(model, pack([path], [-1]))
            torch.testing.assert_close(mine, alone, atol=1e-5, rtol=0)
            assert float(mine[0]) == 0.0
            torch.testing.assert_close(mine[1:], padded[row, width - len(path) :], atol=1e-5, rtol=0)


def test_trap_19_groups_are_found_by_id(model):
    how = algorithm()
    made = with_dropped(random_batch(), False)
    order = [5, 0, 3, 6, 2, 4, 1]
    straight, shuffled = with_advantages(how, made, 0), with_advantages(how, made.take(order), 0)
    for place, path in enumerate(order):
        torch.testing.assert_close(
            shuffled.sampled("advantage")[shuffled.path_T == place],
            straight.sampled("advantage")[straight.path_T == path],
            atol=1e-14,
            rtol=0,
        )
    loss, grads = gradient(how, model, [with_weights(how, straight, 0, 32)])
    again = gradient(how, model, split_micro_batches(with_weights(how, shuffled, 0, 32), 25))
    assert again[0] == pytest.approx(loss, abs=1e-6)
    assert_same(again[1], grads)


def test_trap_20_no_two_groups_or_steps_share_a_random_stream():
    seeds = {stream(seed, step, group) for seed in (0, 1) for step in range(40) for group in range(16)}
    assert len(seeds) == 2 * 40 * 16
    assert all(0 <= s < 2**63 for s in seeds)
    epochs = [choose_prompts(7, 3, seed=4, step=s) for s in range(7)]
    flat = [p for step in epochs for p in step]
    assert [sorted(flat[i : i + 7]) for i in (0, 7, 14)] == [list(range(7))] * 3
    assert flat[:7] != flat[7:14]


def in_paths(pieces):
    """One episode of 20 tokens in `pieces` paths of 20 / pieces, beside an episode of one path of 10 tokens."""
    groups = [[Generation([1] * (20 // pieces), [0.0] * (20 // pieces), "stop")] * pieces]
    groups.append([Generation([2] * 10, [0.0] * 10, "stop")])
    batch = with_dropped(single_turn([[1], [2]], groups), False)
    episode = torch.tensor([0] * pieces + [1])
    return Batch(batch.segments, batch.parents, batch.leaves, batch.tokens, {**batch.paths, "episode": episode})


@pytest.mark.parametrize("weigh", [weighing.token_mean, weighing.sequence_mean, weighing.constant])
def test_trap_25_an_episode_weighs_the_same_in_one_path_or_five(weigh):
    def weights(pieces):
        batch = in_paths(pieces)
        w = weigh(batch, 64) if weigh is weighing.constant else weigh(batch)
        return float(w[batch.path_T < pieces].sum()), float(w[batch.path_T == pieces].sum())

    assert weights(1) == pytest.approx(weights(5), rel=1e-12)
    assert len(split_mini_batches(in_paths(1), 2)) == len(split_mini_batches(in_paths(5), 2)) == 2
