"""A batch trained on group by group has the gradient of the batch trained on at once, or is refused."""

import copy
from itertools import permutations

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_factors
from learning.batch.batch_layout import forest
from learning.models.sharded_model import Trained
from learning.rl.update import update, with_proximal
from learning.samples.sample import Sample
from learning.streaming.group_updates import GroupUpdates
from schemas.errors import StepError
from schemas.stages.rl import Rl

BASE = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1, "max_completion_length": 12}
GRPO = {"advantage": ["center", "scale"], "ratio": "token", "policy_loss": "clipped", "loss_aggregation": "token_mean"}
ENTROPY = [{"use": "entropy", "coef": -0.01}]
LENGTHS = [[3, 7, 1], [12, 2, 6], [4, 12, 4], [5, 1, 2]]
REWARDS = [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [2.0, None, 0.0]]


def groups_of():
    """Ragged groups: one without variance, one with a completion that could not be scored, some cut by the limit."""
    draw = torch.Generator().manual_seed(0)

    def sample(group, length, reward):
        ids = torch.randint(6, 90, (length,), generator=draw).tolist()
        logprobs = (-4.6 + 0.3 * torch.randn(length, generator=draw)).tolist()
        finish = "length" if length == 12 else "stop"
        row, made = (
            {"id": str(group), "family": "f"},
            Sample({}, group, "policy", [5, 6 + group], ids, logprobs, finish, ""),
        )
        made.row, made.versions, made.scores, made.reward = row, [0] * length, {"y": reward}, reward
        return made

    return [
        [sample(g, n, r) for n, r in zip(ns, rs, strict=True)]
        for g, (ns, rs) in enumerate(zip(LENGTHS, REWARDS, strict=True))
    ]


class Case:
    """A stage's algorithm on a copy of the tiny policy, with plain gradient descent."""

    def __init__(self, policy, keep=lambda samples: samples, **more):
        self.stage = Rl.model_validate({**BASE, **GRPO, **more})
        self.algorithm, self.keep = bind_algorithm(self.stage, {}), keep
        self.model = copy.deepcopy(policy.model)
        self.trained = Trained(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)

    def columns(self, batch):
        dropped = with_dropped(batch, self.stage.mask_truncated_completions)
        return with_proximal(self.algorithm, dropped, self.trained, self.stage)

    def credited(self, batch):
        batch = with_advantages(self.algorithm, batch, 0, states={}, rows=[])
        return with_factors(self.algorithm, batch, 0, seed=1)

    def prepare(self, samples):
        kept = self.keep(samples)
        batch = forest(kept)
        return kept, (self.credited(self.columns(batch)) if kept else batch)

    def whole(self):
        scored = [t for group in groups_of() for t in group if t.reward is not None]
        return forest(self.keep(scored))

    def at_once(self):
        batch = self.credited(self.columns(self.whole()))
        metrics = update(self.algorithm, self.trained, self.optimizer, batch, self.stage, 0)
        return metrics, self.gradient()

    def in_pieces(self, order, size=1):
        groups = groups_of()
        pieces = GroupUpdates(self.algorithm, self.trained, self.stage, 0, self.prepare)
        for start in range(0, len(order), size):
            pieces.add([t for g in sorted(order[start : start + size]) for t in groups[g]])
        batch = self.credited(pieces.join(self.whole()))
        metrics = pieces.step(self.optimizer, batch)
        return metrics, self.gradient()

    def gradient(self):
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])


WEIGHINGS = [
    "token_mean",
    {"use": "token_mean", "count_dropped": True},
    "sequence_mean",
    "constant",
    {"use": "nested_mean", "levels": ["group", "path"]},
]


@pytest.mark.parametrize("weigh", WEIGHINGS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_the_whole_batch_in_any_order_of_arrival(tiny_policy, weigh, masked):
    more = {
        "loss_aggregation": weigh,
        "mask_truncated_completions": masked,
        "loss_terms": ENTROPY,
        "max_grad_norm": 1e9,
    }
    metrics, want = Case(tiny_policy, **more).at_once()
    assert float(want.abs().max()) > 1e-3
    for order in list(permutations(range(4)))[::5]:
        other, got = Case(tiny_policy, **more).in_pieces(order)
        torch.testing.assert_close(got, want, atol=1e-6, rtol=0)
        assert other == pytest.approx(metrics, abs=1e-5)
    got = Case(tiny_policy, **more).in_pieces((2, 3, 0, 1), size=2)[1]
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "more",
    [
        {"ratio": "decoupled", "importance_correction": [{"use": "token", "high": 1.1}]},
        {"loss_aggregation": "sequence_mean", "token_mask": [{"use": "positive"}]},
        {"max_tokens_per_micro_batch": 8},
        {"ratio": "sequence", "max_grad_norm": 0.01},
    ],
    ids=str,
)
def test_corrections_selections_splits_and_clipping_change_nothing_in_that(tiny_policy, more):
    want = Case(tiny_policy, **more).at_once()[1]
    for order in ((0, 1, 2, 3), (3, 2, 0, 1)):
        torch.testing.assert_close(Case(tiny_policy, **more).in_pieces(order)[1], want, atol=1e-6, rtol=0)


def test_the_same_order_gives_the_same_bits(tiny_policy):
    a, b = (Case(tiny_policy).in_pieces((0, 1, 2, 3)) for _ in range(2))
    assert a[0] == b[0]
    assert torch.equal(a[1], b[1])


def test_a_filter_that_judges_groups_leaves_out_the_same(tiny_policy):
    def varied(samples):
        by = {}
        for t in samples:
            by.setdefault(t.group, []).append(t)
        return [t for t in samples if len({x.reward for x in by[t.group]}) > 1]

    want = Case(tiny_policy, keep=varied).at_once()[1]
    torch.testing.assert_close(Case(tiny_policy, keep=varied).in_pieces((3, 2, 1, 0))[1], want, atol=1e-6, rtol=0)


def test_a_filter_that_compares_groups_is_refused(tiny_policy):
    case = Case(tiny_policy, keep=lambda samples: samples[:4])
    with pytest.raises(StepError, match="keeps other groups of the batch"):
        case.in_pieces((0, 1, 2, 3))


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"advantage": ["center", {"use": "scale", "by": "batch"}]}, "advantages"),
        ({"loss_aggregation": {"use": "sample_balanced", "by": "max"}}, "weights"),
        ({"loss_terms": [{"use": "entropy", "coef": 0.1, "loss_aggregation": "sequence_mean"}]}, "weights"),
        ({"ratio": "decoupled", "importance_correction": [{"use": "second_moment", "limit": 0.08}]}, "factors"),
    ],
    ids=str,
)
def test_what_compares_groups_is_refused_before_anything_has_changed(tiny_policy, more, what):
    case = Case(tiny_policy, **more)
    with pytest.raises(StepError, match=f"the {what} of the batch are not those of its groups"):
        case.in_pieces((0, 1, 2, 3))
    for mine, start in zip(case.model.parameters(), tiny_policy.model.parameters(), strict=True):
        assert torch.equal(mine, start)


def test_a_batch_of_which_nothing_is_kept_makes_no_step(tiny_policy):
    case = Case(tiny_policy, keep=lambda samples: [])
    pieces = GroupUpdates(case.algorithm, case.trained, case.stage, 0, case.prepare)
    pieces.add(groups_of()[0])
    assert pieces.step(case.optimizer, forest([])) == {}
