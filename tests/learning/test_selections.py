"""Which tokens a term is about: masks against lists written by hand."""

import typing

import pytest
import torch

from learning import selections
from learning.loop.trials import SOURCES


def test_sources_are_those_of_trials():
    assert typing.get_args(selections.Source) == SOURCES
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
