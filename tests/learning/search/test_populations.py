"""Samplers that plan their trials themselves: by hand, populations, brackets."""

import numpy as np
import pytest

from learning.search.populations import by_hand, dehb, pbt
from learning.search.proposals import decode
from schemas.errors import StepError
from schemas.search_space import Range

SPACE = {"rate": Range(low=1e-4, high=1.0, log=True), "size": [8, 16, 32]}


def drive(sampler, score, count):
    """The proposals of a sampler whose trials are worth what `score` says of number and proposal."""
    sampler.begin(SPACE, maximize=True)
    made = []
    while len(made) < count and (proposal := sampler.propose()) is not None:
        made.append(proposal)
        sampler.tell(score(len(made) - 1, proposal))
    return made


def test_places_cover_ranges_and_lists():
    assert [decode(SPACE["rate"], unit) for unit in (0, 0.5, 1)] == pytest.approx([1e-4, 1e-2, 1])
    assert [decode(SPACE["size"], unit) for unit in (0, 0.34, 0.99, 1)] == [8, 16, 32, 32]
    assert [decode(Range(low=1, high=3), unit) for unit in (0, 0.4, 0.7, 1)] == [1, 2, 3, 3]
    assert decode(Range(low=2, high=10, step=4), 1.0) == 10
    assert decode(Range(low=0.0, high=1.0, step=0.25), 0.3) == 0.25
    assert decode(Range(low=1, high=100, log=True), 0.5) == 10
    assert decode(Range(low=0.0, high=1.0), -2.0) == 0.0


def test_settings_by_hand_are_tried_in_their_order():
    given = [{"rate": 0.1, "size": 8}, {"rate": 0.2, "size": 16}]
    made = drive(by_hand(0, settings=given), lambda *_: 0.0, 9)
    assert [one.settings for one in made] == given
    assert {(one.share, one.parent) for one in made} == {(1.0, None)}
    with pytest.raises(StepError, match=r"settings\.0 must give rate, size"):
        by_hand(0, settings=[{"rate": 0.1}]).begin(SPACE, maximize=True)


def test_a_population_takes_all_steps_once_and_the_worst_go_on_from_the_best():
    """Member 2 is the best, 1 the worst: 1 goes on from 2's model with other settings, the others from their own."""
    score = {0: 0.5, 1: 0.1, 2: 0.9, 3: 0.4}
    made = drive(pbt(3, members=4, generations=2), lambda number, _: score.get(number, 0.0), 99)
    assert len(made) == 8
    assert sum(one.share for one in made) == pytest.approx(4)
    assert [one.parent for one in made] == [None] * 4 + [0, 2, 2, 3]
    assert [made[4].settings, made[6].settings, made[7].settings] == [made[i].settings for i in (0, 2, 3)]
    assert made[5].settings != made[2].settings
    again = drive(pbt(3, members=4, generations=2), lambda number, _: score.get(number, 0.0), 99)
    assert again == made
    assert drive(pbt(4, members=4, generations=2), lambda *_: 0.0, 99) != made


def test_changed_settings_lie_a_factor_off_or_are_drawn():
    sampler = pbt(0, redraw=0.0, factor=0.8)
    assert {round(sampler._explore(0.5), 3) for _ in range(40)} == {0.4, 0.625}
    assert {sampler._explore(0.9) for _ in range(40)} == {0.9 * 0.8, 1.0}
    sampler = pbt(0, redraw=1.0)
    assert len({sampler._explore(0.5) for _ in range(9)}) == 9


def test_a_member_that_fails_goes_on_from_another():
    made = drive(pbt(0, members=2, generations=2), lambda number, _: None if number == 0 else 1.0, 4)
    assert [one.parent for one in made[2:]] == [1, 1]
    nothing = drive(pbt(0, members=2, generations=2), lambda *_: None, 4)
    assert [one.parent for one in nothing] == [None] * 4


def test_brackets_promote_the_best_of_each_share_and_then_evolve():
    """Nine trials of a third of the steps; the three best with all of them; then mutants, kept if no worse."""
    sampler = dehb(1, members=9, eta=3, rungs=2)
    worth = np.random.default_rng(0).random(200)
    made = drive(sampler, lambda number, _: worth[number], 24)
    assert [one.share for one in made[:12]] == pytest.approx([1 / 3] * 9 + [1.0] * 3)
    assert [one.share for one in made[12:]] == pytest.approx([1 / 3] * 9 + [1.0] * 3)
    best = sorted(range(9), key=lambda trial: -worth[trial])[:3]
    assert [one.settings for one in made[9:12]] == [made[trial].settings for trial in best]
    assert sum(one.settings not in [before.settings for before in made[:12]] for one in made[12:21]) >= 6
    kept = [value for _, value in sampler.populations[0]]
    assert kept == [max(worth[trial], worth[trial + 12]) for trial in range(9)]
    assert all(one.parent is None for one in made)


def test_differential_evolution_finds_a_peak():
    def score(_, proposal):
        return -abs(np.log10(proposal.settings["rate"]) + 2)

    made = drive(dehb(2, members=9, eta=3, rungs=2), score, 72)
    first, last = ([-score(0, one) for one in part] for part in (made[:9], made[-12:]))
    assert np.mean(last) < 0.4 * np.mean(first)
