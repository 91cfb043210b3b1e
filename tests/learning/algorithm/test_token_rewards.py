"""Rewards of single tokens: potentials telescope, baselines are the others', statistics are what they are called."""

import pytest
import torch

from learning.algorithm.advantages.normalisation import reward_to_go
from learning.algorithm.advantages.token_rewards import potential, rivals, stepwise
from learning.algorithm.auxiliary_targets import (
    mean_action,
    monte_carlo,
    outcome,
    progress,
    remaining,
    temporal_difference,
)
from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.algorithm.reward_shaping import from_tokens
from learning.batch.batch_layout import single_turn
from learning.batch.columns import Column, ColumnView, of_rewards
from learning.data.chat import encode_prompt
from learning.rewards.models import process
from learning.rl.auxiliary_models import AuxiliaryModel
from learning.samples.engine_protocol import Generation
from schemas.auxiliary import Auxiliary as Block
from schemas.errors import StepError
from schemas.stages.rl import Rl

COUNTS = [4, 1, 2, 5]
REWARDS = torch.tensor([1.0, 0.0, 0.5, 0.0], dtype=torch.float64)


def numbers(seed, count=12):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def batch():
    """Two groups of two completions, the second and the last cut."""
    finishes = iter(["stop", "length", "stop", "length"])
    groups = [[Generation([7] * n, [-1.0] * n, next(finishes)) for n in pair] for pair in ([4, 1], [2, 5])]
    made = single_turn([[1, 2], [3]], groups).with_paths(reward=REWARDS, **{"score:exact": REWARDS})
    return made.with_tokens(**{"aux:phi": numbers(1)})


def lists(values_T):
    return [part.tolist() for part in values_T.split(COUNTS)]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_a_potential_telescopes_and_leaves_totals_of_a_problem_in_their_order(batch, gamma):
    phi = batch.sampled("aux:phi")
    # Before the first token every completion of a problem is in the same state.
    phi[4], phi[7] = phi[0], phi[5]
    supplies = {"phi": phi}
    plain = reward_to_go(Column(REWARDS, REWARDS, torch.arange(4), "path"), batch, gamma=gamma)
    shaped = reward_to_go(potential(of_rewards(batch), batch, supplies, of="phi", gamma=gamma), batch, gamma=gamma)
    # The return from each token on is lower by the potential of its own state: a function of the state alone.
    torch.testing.assert_close(shaped.values_X, plain.values_X - phi, atol=1e-12, rtol=0)
    first = torch.tensor([0, 4, 5, 7])
    totals = (shaped.values_X - plain.values_X)[first]
    assert float(totals[0]) == pytest.approx(float(totals[1]), abs=1e-12) == pytest.approx(-float(phi[0]), abs=1e-12)
    assert float(totals[2]) == pytest.approx(float(totals[3]), abs=1e-12) == pytest.approx(-float(phi[5]), abs=1e-12)


def test_a_potential_that_does_not_end_at_nothing_would_pay_for_it(batch):
    """What the rule at the end is for: without it a completion gains by where it stops."""
    phi = batch.sampled("aux:phi")
    kept = potential(Column(REWARDS * 0, REWARDS, torch.arange(4), "path"), batch, {"phi": phi}, of="phi", weight=2.0)
    sums = [sum(part) for part in lists(kept.values_X)]
    assert sums == pytest.approx([-2 * part[0] for part in lists(phi)], abs=1e-12)


def test_rivals_are_the_means_of_the_others(batch):
    values = numbers(2)
    made = rivals(Column(values, values, batch.path_T, "token"), batch)
    means = [sum(part) / len(part) for part in lists(values)]
    base = [means[1], means[0], means[3], means[2]]
    want = [v - b for part, b in zip(lists(values), base, strict=True) for v in part]
    torch.testing.assert_close(made.values_X, torch.tensor(want, dtype=torch.float64), atol=1e-12, rtol=0)
    flat = torch.full((12,), 0.1, dtype=torch.float64)
    assert rivals(Column(flat, flat, batch.path_T, "token"), batch).values_X.tolist() == [0.0] * 12
    alone = batch.take([0, 2])
    one = Column(values[[0, 1, 2, 3, 5, 6]], values[[0, 1, 2, 3, 5, 6]], alone.path_T, "token")
    assert rivals(one, alone).values_X.tolist() == [0.0] * 6
    with pytest.raises(StepError, match="before reward_to_go"):
        rivals(of_rewards(batch), batch)


def test_process_and_outcome_make_the_advantage_of_prime(batch):
    """A_t = Σ_{s≥t} (r_s − mean of the others' means) + R − mean of the others' R (PRIME, eq. 5, γ = 1)."""
    words = {
        "advantage": [{"use": "center", "stat": "loo"}],
        "advantage_streams": [{"of": "phi", "advantage": ["rivals", "reward_to_go"]}],
        "auxiliary_models": {"phi": {"head": "likelihood", "target": "outcome", "loss": "logistic"}},
    }
    made = with_advantages(bind_algorithm(stage(**words), {}), batch, 0)
    phi, others = lists(batch.sampled("aux:phi")), [1, 0, 3, 2]
    want = []
    for path, part in enumerate(phi):
        rival = phi[others[path]]
        each = [r - sum(rival) / len(rival) for r in part]
        outer = float(REWARDS[path] - REWARDS[others[path]])
        want += [sum(each[t:]) + outer for t in range(len(part))]
    torch.testing.assert_close(made.sampled("advantage"), torch.tensor(want, dtype=torch.float64), atol=1e-12, rtol=0)


def test_preset_prime_is_its_paper(golden):
    phi = golden.columns["value"]
    parts = [part.tolist() for part in phi.split(golden.counts)]
    rewards = [r for group in golden.rewards for r in group]
    advantages = []
    for path, part in enumerate(parts):
        rivals = [p for p in range(path // 4 * 4, path // 4 * 4 + 4) if p != path]
        base = sum(sum(parts[p]) / len(parts[p]) for p in rivals) / 3
        outer = rewards[path] - sum(rewards[p] for p in rivals) / 3
        outer = 0.0 if len({rewards[p] for p in (*rivals, path)}) == 1 else outer
        advantages.append([sum(r - base for r in part[t:]) + outer for t in range(len(part))])
    flat = torch.tensor([a for path in advantages for a in path], dtype=torch.float64)
    rho = (golden.columns["lp"] - golden.columns["behav"]).exp()
    loss = -torch.minimum(rho * flat, rho.clamp(0.8, 1.2) * flat).mean()
    golden.agrees("prime", advantages, loss, batch=golden.batch.with_tokens(**{"aux:credit": phi}))


def test_steps_are_added_and_a_baseline_taken_off(batch):
    phi = batch.sampled("aux:phi")
    made = reward_to_go(stepwise(of_rewards(batch), batch, {"phi": phi}, of="phi", weight=0.5), batch)
    want = [
        sum(0.5 * v for v in part[t:]) + float(r)
        for part, r in zip(lists(phi), REWARDS, strict=True)
        for t in range(len(part))
    ]
    torch.testing.assert_close(made.values_X, torch.tensor(want, dtype=torch.float64), atol=1e-12, rtol=0)
    less = stepwise(reward_to_go(of_rewards(batch), batch), batch, {"phi": phi}, of="phi", weight=-1.0)
    torch.testing.assert_close(less.values_X, REWARDS[batch.path_T] - phi, atol=1e-12, rtol=0)
    with pytest.raises(StepError, match="no auxiliary 'psi' in this stage; it has: phi"):
        stepwise(of_rewards(batch), batch, {"phi": phi}, of="psi")


def test_statistics_of_tokens_join_the_reward(batch):
    phi, auxiliary = batch.sampled("aux:phi"), ColumnView(batch)["auxiliary_T"]
    for stat, of in (("min", min), ("mean", lambda v: sum(v) / len(v)), ("last", lambda v: v[-1]), ("sum", sum)):
        made = from_tokens(REWARDS, auxiliary, batch.path_T, of="phi", stat=stat, weight=2.0)
        want = [float(r) + 2 * of(part) for r, part in zip(REWARDS, lists(phi), strict=True)]
        assert made.tolist() == pytest.approx(want, abs=1e-12)


def test_targets_written_out(batch):
    nan, path = float("nan"), batch.path_T
    scores = {"exact": REWARDS}
    assert lists(outcome(REWARDS, scores, path)) == [[1.0] * 4, [0.0], [0.5] * 2, [0.0] * 5]
    assert lists(outcome(REWARDS * nan, scores, path, of="exact", at_least=0.5)) == [
        [1.0] * 4,
        [0.0],
        [1.0] * 2,
        [0.0] * 5,
    ]
    assert outcome(REWARDS * nan, scores, path, at_least=0.5).isnan().all()
    assert lists(monte_carlo(REWARDS, scores, path, gamma=0.5)) == [
        [0.125, 0.25, 0.5, 1.0],
        [0.0],
        [0.25, 0.5],
        [0.0] * 5,
    ]
    ahead = numbers(3)
    for made in (
        temporal_difference(REWARDS, scores, path, ahead, gamma=0.5),
        mean_action(REWARDS, scores, path, ahead, gamma=0.5),
    ):
        earned = torch.tensor([0, 0, 0, 1, 0, 0, 0.5, 0, 0, 0, 0, 0]).double()
        torch.testing.assert_close(made, earned + 0.5 * ahead)
    cut = batch.paths["truncated"][path]
    assert lists(progress(path, cut))[0] == [0.0, 0.25, 0.5, 0.75]
    assert lists(progress(path, cut))[2] == [0.0, 0.5]
    assert lists(remaining(path, cut, unit=2.0))[0] == [2.0, 1.5, 1.0, 0.5]
    assert progress(path, cut).isnan().tolist() == cut.tolist()
    with pytest.raises(StepError, match="no reward 'other'"):
        outcome(REWARDS, scores, path, of="other")


def stage(**more):
    base = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1, "advantage": ["center"]}
    return Rl.model_validate(
        {**base, "ratio": "token", "policy_loss": "clipped", "loss_aggregation": "token_mean", **more}
    )


@pytest.mark.parametrize("head", ["token", "likelihood"])
def test_a_published_one_is_a_reward(tiny_policy, tmp_path, head):
    block = Block(head=head, target="outcome", link="logistic" if head == "token" else "identity")
    one = AuxiliaryModel("p", block, tiny_policy, stage(), {}, 0)
    for parameter in [p for p in one.network.parameters() if p.requires_grad]:
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    one.save(tiny_policy, tmp_path / "judge")
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("ab", "ab", "cab", "b")]
    texts = ["a", "bcc", "", "a" * 200]
    sampled = single_turn(
        [encode_prompt(tiny_policy.tokenizer, row["prompt"]) for row in rows[1:3]],
        [[generation(tiny_policy, text) for text in group] for group in (texts[:2], texts[2:3])],
    )
    values = ColumnView(one.add_values(sampled))["p_T"].split([2, 4, 1])
    for stat, of in (("min", min), ("mean", lambda v: sum(v) / len(v)), ("last", lambda v: v[-1]), ("sum", sum)):
        scores = process(rows, texts, model=tmp_path / "judge", stat=stat)
        assert scores[:3] == pytest.approx([of(v.tolist()) for v in values], abs=1e-6)
        assert scores[3] is None
    assert process(rows[:1], ["a"], model=tmp_path / "judge") == process(rows, texts, model=tmp_path / "judge")[:1]


def generation(policy, text):
    ids = [*policy.tokenizer.encode(text, add_special_tokens=False), policy.tokenizer.eos_token_id]
    return Generation(ids, [0.0] * len(ids), "stop")
