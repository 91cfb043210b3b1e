import dataclasses

import numpy as np
import pytest
import torch

from learning.algorithm.advantages import normalisation as advantages
from learning.algorithm.composition import Algorithm
from learning.algorithm.policy_losses import policy_gradient as surrogates
from learning.algorithm.ratios import ratios
from learning.batch import columns
from learning.batch.batch_layout import forest, single_turn
from learning.batch.micro_batches import split_mini_batches, statistics_of
from learning.lookup import Bound, bind
from learning.models.packed import packed_logprobs
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.engine_protocol import Generation
from learning.samples.sample import Sample
from learning.sampling.sampler import names, score
from schemas.errors import StepError
from schemas.number_schedules import Linear
from schemas.stages.rl import Rl
from schemas.use import PolicyLossUse


def batch(lengths=((2, 3, 1, 4, 2), (1, 1)), rewards=(0.0, 1.0, 0.25, 3.0, 1.0, 2.0, 5.0)):
    groups = [[Generation([7] * n, [-1.0] * n, "stop") for n in ns] for ns in lengths]
    made = single_turn([[1, 2, 3], [4]], groups)
    return made.with_paths(reward=torch.tensor(rewards, dtype=torch.float64))


def column(**options):
    return advantages.center(columns.of_rewards(batch()), batch(), **options)


def test_center_and_scale_against_numpy():
    first, second = np.array([0.0, 1.0, 0.25, 3.0, 1.0]), np.array([2.0, 5.0])
    for stat, of in (("mean", np.mean), ("median", np.median)):
        got = column(stat=stat).values_X.numpy()
        np.testing.assert_allclose(got, np.concatenate([first - of(first), second - of(second)]), atol=1e-15)
    loo = [r - (g.sum() - r) / (len(g) - 1) for g in (first, second) for r in g]
    np.testing.assert_allclose(column(stat="loo").values_X.numpy(), loo, atol=1e-15)
    both = np.concatenate([first, second])
    np.testing.assert_allclose(column(by="batch").values_X.numpy(), both - both.mean(), atol=1e-15)
    centered = column()
    mad = [np.median(np.abs(g - np.median(g))) for g in (first, second)]
    got = advantages.scale(centered, batch(), stat="mad", of="raw", epsilon=0.5).values_X.numpy()
    np.testing.assert_allclose(got[:5], (first - first.mean()) / (mad[0] + 0.5), atol=1e-15)
    got = advantages.scale(centered, batch(), by="batch", of="raw", unbiased=False, epsilon=0.0).values_X.numpy()
    np.testing.assert_allclose(got[5:], (second - second.mean()) / both.std(), atol=1e-15)
    got = advantages.scale(centered, batch(), stat="mean", of="raw", epsilon=0.0).values_X.numpy()
    np.testing.assert_allclose(got[:5], first / first.mean() - 1, atol=1e-15)


def test_order_of_operations_is_the_lists():
    made = batch()
    clipped_last = advantages.clip(advantages.center(columns.of_rewards(made), made), made, low=-1.0, high=1.0)
    clipped_first = advantages.center(advantages.clip(columns.of_rewards(made), made, low=-1.0, high=1.0), made)
    assert clipped_last.values_X.tolist()[5:] == [-1.0, 1.0]
    assert clipped_first.values_X.tolist()[5:] == [0.0, 0.0]


def test_returns_are_discounted_by_sampled_token():
    made = batch()
    got = advantages.reward_to_go(columns.of_rewards(made), made, gamma=0.5).values_X
    lengths = (2, 3, 1, 4, 2, 1, 1)
    pairs = zip(made.paths["reward"].tolist(), lengths, strict=True)
    want = [reward * 0.5 ** (n - 1 - t) for reward, n in pairs for t in range(n)]
    assert got.tolist() == pytest.approx(want, abs=1e-15)


def test_sequence_token_has_the_value_of_the_sequence_and_its_own_gradient():
    generator = torch.Generator().manual_seed(0)
    lp = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    behav = torch.randn(6, generator=generator, dtype=torch.float64)
    path = torch.tensor([0, 0, 0, 2, 2, 5])
    value = ratios.sequence(lp, behav, path)
    token = ratios.sequence_token(lp, behav, path)
    torch.testing.assert_close(token, value, atol=1e-15, rtol=0)
    mean = torch.stack([(lp - behav)[path == p].mean() for p in (0, 2, 5)])
    torch.testing.assert_close(value, mean[torch.tensor([0, 0, 0, 1, 1, 2])], atol=1e-15, rtol=0)
    weight = torch.arange(1.0, 7.0).double()
    assert torch.autograd.grad((token * weight).sum(), lp)[0].tolist() == weight.tolist()
    by_path = [6 / 3] * 3 + [9 / 2] * 2 + [6.0]
    assert torch.autograd.grad((value * weight).sum(), lp)[0].tolist() == pytest.approx(by_path)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_clipped_gradient_weight_is_the_closed_form(sign):
    log_ratio = torch.linspace(-2, 2, 41, dtype=torch.float64).requires_grad_()
    loss = surrogates.clipped(log_ratio, torch.full((41,), sign).double(), epsilon=0.2, epsilon_high=0.28, delta=3.0)
    (grad,) = torch.autograd.grad(loss.sum(), log_ratio)
    rho = log_ratio.detach().exp()
    active = rho < 1.28 if sign > 0 else (rho > 0.8) & (rho < 3.0)
    torch.testing.assert_close(grad, torch.where(active, -sign * rho, 0.0), atol=1e-14, rtol=0)


def test_an_option_may_be_a_schedule():
    use = PolicyLossUse.model_validate({"use": "clipped", "epsilon": {"linear": {"from": 0.4, "to": 0.0, "steps": 4}}})
    supplies = {"log_ratio_T": torch.tensor([1.0]), "advantage_T": torch.tensor([1.0])}
    losses = [float(bind(use).ask(step, supplies)[0]) for step in (0, 1, 4, 9)]
    assert losses == pytest.approx([-1.4, -1.3, -1.0, -1.0])


def test_a_part_that_asks_for_an_unknown_name_is_refused():
    with pytest.raises(StepError, match="asks for moon_T; here there is lp_T"):
        Bound("mine", lambda moon_T: moon_T, {}).ask(0, {"lp_T": torch.zeros(1)})


def test_only_what_is_asked_for_is_needed():
    plain = Algorithm((), Bound("r", ratios.token, {}), Bound("s", surrogates.clipped, {}), Bound("w", len, {}), ())
    assert not plain.needs("lp_ref_T")
    anchored = dataclasses.replace(plain, policy_loss=Bound("s", lambda lp_T, lp_ref_T: lp_T, {}))
    assert anchored.needs("lp_ref_T")


def test_columns_are_only_added():
    with pytest.raises(ValueError, match="may only add"):
        batch().with_paths(reward=torch.zeros(7))
    with pytest.raises(ValueError, match="lp_behav"):
        batch().with_tokens(lp_behav=torch.zeros(14))


def test_mini_batches_are_whole_groups():
    parts = split_mini_batches(batch(), 2)
    assert [part.paths["group"].tolist() for part in parts] == [[0] * 5, [1] * 2]
    assert [len(part.segments) for part in parts] == [6, 3]
    assert len(split_mini_batches(batch().take([0, 1]), 2)) == 1


def test_reference_log_probabilities_land_at_their_tokens(tiny_policy):
    generator = torch.Generator().manual_seed(1)
    groups = [
        [Generation(torch.randint(5, 60, (n,), generator=generator).tolist(), [0.0] * n, "stop") for n in ns]
        for ns in ((4, 9, 2), (7, 3))
    ]
    made = single_turn([[8, 9, 10], [11]], groups).take([3, 0, 4, 2])
    got = statistics_of(made, tiny_policy.model, ("lp",), max_tokens=12, temperature=0.8)["lp"]
    with torch.no_grad():
        want, _ = packed_logprobs(tiny_policy.model, made.packed, temperature=0.8)
    torch.testing.assert_close(got, want[made.sampled_T].double(), atol=1e-5, rtol=0)


def test_a_reward_of_no_weight_makes_nothing_unscorable_unless_it_is_read():
    known, unknown = Bound("known", lambda completions: [1.0], {}), Bound("unknown", lambda completions: [None], {})

    def rewarded(weight, read=(), step=0):
        sample = Sample({"id": "q"}, 0, "policy", [1], [1], [0.0], "stop", "a")
        score([known, unknown], [1.0, weight], [sample], {"step": step}, read)
        assert sample.scores == {"known": 1.0, "unknown": None}
        return sample.reward

    fades = Linear.model_validate({"linear": {"from": 1.0, "to": 0.0, "steps": 2}})
    assert [rewarded(0.0), rewarded(0.5), rewarded(0.0, ["unknown"])] == [1.0, None, None]
    assert [rewarded(fades, step=step) for step in (0, 1, 2)] == [None, None, 1.0]


def test_what_other_parts_read_is_found_in_the_recipe():
    def read(**more):
        words = {
            "kind": "rl",
            "model": "m",
            "prompts": "p",
            "max_steps": 1,
            "ratio": "token",
            "loss_aggregation": "token_mean",
        }
        rewards = ["answers.exact", {"use": "formats.matches", "pattern": "x", "weight": 0.0}]
        words |= {"advantage": ["center"], "policy_loss": "clipped", "rewards": rewards, **more}
        return bind_sampling_slots(Rl.model_validate(words), {}).read

    assert read() == {"answers.exact"}
    both = {"answers.exact", "formats.matches"}
    assert read(advantage_streams=[{"of": "formats.matches", "advantage": ["center"]}]) == both
    assert read(reward_shaping=[{"use": "tiered", "tiers": {"formats.matches": 0.0}}]) == both
    assert read(reward_shaping=[{"use": "bonus", "of": "formats.matches"}]) == both


def test_rewards_of_the_same_name_are_numbered_and_raw_scores_kept():
    flat = Bound("x.y", lambda completions: [float(len(t)) for t in completions], {})
    samples = [Sample({"id": "q"}, 0, "policy", [1], [1], [0.0], "stop", text) for text in ("a", "bb")]
    rising = Linear.model_validate({"linear": {"from": 0, "to": 2, "steps": 2}})
    score([flat, flat], [1.0, rising], samples, {"step": 1})
    assert names([flat, flat, flat]) == ["x.y", "x.y#2", "x.y#3"]
    assert [t.scores["x.y#2"] for t in samples] == [1.0, 2.0]
    assert [t.reward for t in samples] == [2.0, 4.0]
    assert forest(samples).paths["reward"].tolist() == [2.0, 4.0]
    with pytest.raises(StepError, match="1 scores for 2 completions"):
        score([Bound("bad", lambda rows: [0.0], {})], [1.0], samples, {"step": 0})
