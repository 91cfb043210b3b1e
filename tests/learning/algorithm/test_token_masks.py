"""Which tokens a term is about: masks against lists written by hand."""

import pytest
import torch

from learning.algorithm.token_masks import masks as selections
from learning.samples.sample import SOURCES


def test_sources_are_those_of_trials():
    source_T = torch.tensor([SOURCES.index(s) for s in ("policy", "expert", "replay", "expert", "teacher")])
    assert selections.sources(source_T, keep=["expert", "teacher"]).tolist() == [False, True, False, True, True]


def test_own_and_external_are_all():
    external_T = torch.tensor([True, False, True])
    assert selections.external(external_T).tolist() == [True, False, True]
    assert selections.own(external_T).tolist() == [False, True, False]


def test_signs_leave_zero_out():
    advantage_T = torch.tensor([-1.0, 0.0, 2.0])
    assert selections.positive(advantage_T).tolist() == [False, False, True]
    assert selections.negative(advantage_T).tolist() == [True, False, False]


def test_by_reward_length_place_age_and_likelihood():
    assert selections.rewarded(torch.tensor([0.0, 0.5, 1.0]), above=0.5).tolist() == [False, False, True]
    assert selections.finished(torch.tensor([True, False])).tolist() == [False, True]
    assert selections.early(torch.tensor([0, 1, 2, 0]), tokens=2).tolist() == [True, True, False, True]
    assert selections.fresh(torch.tensor([3, 5, 6, 7]), 7, max_age=1).tolist() == [False, False, True, True]
    lp_T = torch.tensor([0.5, 0.05, 0.2]).log()
    assert selections.unlikely(lp_T, below=0.1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("share", "high", "low"), [(0.2, [4], [0]), (0.4, [3, 4], [0, 1]), (0.41, [2, 3, 4], [0, 1, 2])]
)
def test_shares_of_entropy(share, high, low):
    entropy_T = torch.tensor([0.1, 0.2, 0.5, 0.9, 1.3])
    assert selections.high_entropy(entropy_T, share=share).nonzero()[:, 0].tolist() == high
    assert selections.low_entropy(entropy_T, share=share).nonzero()[:, 0].tolist() == low


def test_shares_do_not_depend_on_order_and_keep_ties():
    entropy_T = torch.tensor([1.0, 0.0, 1.0, 0.3])
    order = torch.tensor([2, 3, 1, 0])
    kept_T = selections.high_entropy(entropy_T, share=0.25)
    assert kept_T.tolist() == [True, False, True, False]
    assert selections.high_entropy(entropy_T[order], share=0.25).tolist() == kept_T[order].tolist()
    assert selections.high_entropy(torch.zeros(0), share=0.25).tolist() == []


TURNS = [0.1, 0.5, 0.2, 0.9, 0.4]


def turns_of(*episodes, tokens=2):
    """Columns of episodes whose turns have these mean entropies; each token is off its turn's mean, evenly."""
    rows = [
        (path, turn, mean + (0.05 if k % 2 else -0.05) * (mean > 0))
        for path, means in enumerate(episodes)
        for turn, mean in enumerate(means)
        for k in range(tokens)
    ]
    path_T, turn_T = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
    return torch.tensor([row[2] for row in rows], dtype=torch.float64), turn_T, path_T


def left_out(columns, group_T=None, **options):
    """(episode, turn) of what is not trained on; a turn is masked as a whole."""
    entropy_T, turn_T, path_T = columns
    group_T = torch.zeros_like(path_T) if group_T is None else group_T
    kept_T = selections.high_entropy_turns(entropy_T, turn_T, path_T, group_T, **options)
    masked = set(zip(path_T[~kept_T].tolist(), turn_T[~kept_T].tolist(), strict=True))
    assert not masked & set(zip(path_T[kept_T].tolist(), turn_T[kept_T].tolist(), strict=True))
    return sorted(masked)


@pytest.mark.parametrize("among", ["batch", "group", "episode"])
def test_of_five_turns_at_a_share_of_four_fifths_the_surest_alone_is_masked(among):
    assert left_out(turns_of(TURNS), keep=0.8, among=among) == [(0, 0)]
    assert left_out(turns_of(TURNS), keep=0.4, among=among) == [(0, 0), (0, 2), (0, 4)]
    assert left_out(turns_of(TURNS), keep=1.0, among=among) == []


def test_turns_are_compared_within_the_batch_the_group_or_the_episode():
    columns = turns_of([0.1, 0.2], [0.3, 0.4], [0.5, 0.6, 0.7, 0.8])
    group_T = columns[2] // 2
    assert left_out(columns, group_T, keep=0.5) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert left_out(columns, group_T, keep=0.5, among="group") == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert left_out(columns, group_T, keep=0.5, among="episode") == [(0, 0), (1, 0), (2, 0), (2, 1)]


def test_a_turn_counts_once_however_long_it_is_and_ties_are_kept():
    entropy_T = torch.tensor([0.2] * 30 + [0.4, 0.6, 0.6])
    turn_T = torch.tensor([0] * 30 + [1, 2, 3])
    path_T = torch.zeros_like(turn_T)
    kept_T = selections.high_entropy_turns(entropy_T, turn_T, path_T, path_T, keep=0.25)
    assert kept_T.tolist() == [False] * 31 + [True, True]


def test_turns_without_a_noted_entropy_are_kept_and_not_counted():
    columns = turns_of([0.0, 0.0, 0.0], TURNS)
    assert left_out(columns, keep=0.8) == [(1, 0)]
    assert selections.high_entropy_turns(*(torch.zeros(0, dtype=torch.long),) * 4).tolist() == []


def test_turns_are_cut_to_a_multiple_by_the_iteration():
    """Eleven turns, four trainers: eight are left, whole, and other iterations leave out others."""
    turn_T = torch.tensor([0, 0, 1, 2, 2, 3, 0, 1, 2, 3, 0, 1, 1, 2])
    path_T = torch.tensor([0] * 6 + [1] * 4 + [2] * 4)
    kept = {step: selections.multiple_of_turns(path_T, turn_T, step, of=4) for step in range(6)}
    for kept_T in kept.values():
        turns = set(zip(path_T[kept_T].tolist(), turn_T[kept_T].tolist(), strict=True))
        assert len(turns) == 8
        assert not turns & set(zip(path_T[~kept_T].tolist(), turn_T[~kept_T].tolist(), strict=True))
    assert len({tuple(kept_T.tolist()) for kept_T in kept.values()}) > 1
    assert not selections.multiple_of_turns(path_T, turn_T, 0, of=12).any()
    assert selections.multiple_of_turns(path_T, turn_T, 0, of=11).all()
    assert selections.multiple_of_turns(path_T[:0], turn_T[:0], 0, of=2).tolist() == []


@pytest.mark.parametrize(("among", "kept"), [("batch", [1, 1, 1, 1, 1]), ("completion", [0, 1, 1, 1, 1])])
def test_mastered_tokens_are_masked_by_the_entropy_of_the_batch_or_of_each_completion(among, kept):
    """Entropies of 0.1 and 0.4 on average: below the target of 0.2 is the first completion alone, not the batch."""
    reward_T, path_T = torch.ones(5), torch.tensor([0, 0, 1, 1, 1])
    lp_prox_T = torch.tensor([0.995, 0.5, 0.995, 0.999, 0.2]).log()
    entropy_T = torch.tensor([0.02, 0.18, 0.1, 0.1, 1.0])
    mask_T = selections.mask_mastered(reward_T, lp_prox_T, entropy_T, path_T, among=among)
    assert mask_T.int().tolist() == kept
    assert selections.mask_mastered(-reward_T, lp_prox_T, entropy_T, path_T, among=among).all()
    nothing = [column_T[:0] for column_T in (reward_T, lp_prox_T, entropy_T, path_T)]
    assert selections.mask_mastered(*nothing, among=among).tolist() == []
