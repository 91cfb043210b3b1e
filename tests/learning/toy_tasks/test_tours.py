"""Tours: what actions do, cheapest bookings by brute force, an expert that errs, saved states, refused rows."""

import json
from itertools import product

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Savable
from learning.lookup import bind
from learning.toy_tasks.tours import Tour, find_cheapest, make_tour_row, read_tour, tour_booker
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse

TOUR = {
    "tour": ["ham", "ulm", "bonn"],
    "stars": 3,
    "budget": 92,
    "trains": {
        "ham ulm": {"a1": [6, 9, 30], "a2": [7, 8, 41], "a3": [10, 12, 12]},
        "ulm bonn": {"b1": [11, 12, 20], "b2": [7, 9, 1], "b3": [13, 15, 45]},
    },
    "hotels": {"ulm": {"inn": [3, 24], "hut": [1, 5]}, "bonn": {"park": [4, 15], "loft": [3, 18]}},
}
"""The cheapest first train misses the cheap one after it: it leads to 96, the one at 6 to 89."""
ROW = make_tour_row(Tour.model_validate(TOUR))


def begin(row=ROW, **options):
    return build_environment(EnvUse.model_validate({"use": "travel", **options}), {}).begin(row, 0)


def draw(**options):
    return bind(ProblemsUse.model_validate({"use": "tours", "size": 60, "split": "train", **options}))()


def change(**changes):
    return ROW | {"metadata": json.dumps(TOUR | changes)}


def test_the_answers_to_every_action():
    assert ROW["prompt"][0]["content"] == "tour: ham ulm bonn\nstars: 3\nbudget: 92"
    episode = begin(penalty=0.1)
    said = [
        ("trains  ham ulm ", "a1 6-9 30, a2 7-8 41, a3 10-12 12"),
        ("hotels ulm", "inn 3 stars 24, hut 1 stars 5"),
        ("trains ulm ham", "? no such action"),
        ("cancel", "? no such action"),
        ("book b1", "? a train from ham to ulm is next"),
        ("book a3", "booked a3; at ulm at 12, 80 left"),
        ("book b1", "? a hotel in ulm is next"),
        ("book hut", "? hut has 1 stars"),
        ("book inn", "booked inn; at ulm at 12, 56 left"),
        ("book b1", "? b1 departs before 12"),
        ("book b3", "booked b3; at bonn at 15, 11 left"),
        ("book park", "? park costs 15, 11 are left"),
    ]
    turns, expected = zip(*said, strict=True)
    outcomes = [episode.step(turn) for turn in turns]
    assert [one.observation for one in outcomes] == [*expected]
    assert [one.ok for one in outcomes] == [not text.startswith("?") for text in expected]
    assert [one.reward for one in outcomes] == [-0.1 if text.startswith("?") else 0 for text in expected]
    backs = [episode.step("cancel").observation for _ in range(3)]
    assert backs[0] == "cancelled b3; at ulm at 12, 56 left"
    assert backs[2] == "cancelled a3; at ham at 0, 92 left"
    rest = [episode.step(f"book {name}") for name in ("a1", "inn", "b1", "park")]
    assert [(one.done, one.reward, one.observation) for one in rest[-2:]] == [
        (False, 0.0, "booked b1; at bonn at 12, 18 left"),
        (True, 1.0, ""),
    ]


def test_the_cheapest_bookings_are_those_of_all_combinations():
    assert find_cheapest(Tour.model_validate(TOUR), []) == (89, ["a1", "inn", "b1", "park"])
    assert find_cheapest(Tour.model_validate(TOUR), ["a3"]) is None
    for row in draw(legs=[1, 2, 3, 4], slack=30):
        tour = read_tour(row)
        prices = []
        pairs = [f"{a} {b}" for a, b in zip(tour.tour, tour.tour[1:], strict=False)]
        for trains in product(*(tour.trains[pair].values() for pair in pairs)):
            if all(trains[i][1] <= trains[i + 1][0] for i in range(len(trains) - 1)):
                for hotels in product(*(tour.hotels[city].values() for city in tour.tour[1:])):
                    if min(stars for stars, _ in hotels) >= tour.stars:
                        prices.append(sum(train[2] for train in trains) + sum(price for _, price in hotels))
        found = find_cheapest(tour, [])
        assert found is not None
        assert found[0] == min(prices)
        assert min(prices) <= tour.budget <= min(prices) + 30


def test_a_state_is_restored_and_named():
    episode = begin()
    assert isinstance(episode, Savable)
    assert isinstance(episode, HasStateName)
    episode.step("book a1")
    saved = json.loads(json.dumps(episode.save()))
    episode.step("book inn")
    assert episode.state_name == "a1 inn"
    episode.restore(saved)
    assert (episode.state_name, episode.step("book inn").ok) == ("a1", True)


def play(row, rng, error_rate=0.0):
    """Return the turns of an episode of the expert, and its last outcome."""
    episode, shown, turns = begin(row), row, []
    while True:
        turns.append(tour_booker(shown, rng, error_rate=error_rate))
        outcome = episode.step(turns[-1])
        if outcome.done:
            return turns, outcome
        said = [{"role": "assistant", "content": turns[-1]}, {"role": "user", "content": outcome.observation}]
        shown = shown | {"prompt": [*shown["prompt"], *said]}


def test_the_expert_books_every_tour_in_the_fewest_turns_and_repairs_its_errors():
    rng = np.random.default_rng(0)
    for row in draw(legs=[1, 2, 3, 4]):
        turns, outcome = play(row, rng)
        assert outcome.reward == 1
        assert len(turns) == json.loads(row["metadata"])["steps"] == 4 * read_tour(row).legs
    cancelled = 0
    for row in draw(legs=[2, 3], seed=1):
        turns, outcome = play(row, rng, error_rate=0.3)
        assert outcome.reward == 1
        cancelled += "cancel" in turns
    assert cancelled > 20
    booked = [{"role": "assistant", "content": f"book {name}"} for name in ("a1", "inn", "b1", "park")]
    with pytest.raises(StepError, match="its tour was booked"):
        tour_booker(ROW | {"prompt": [*ROW["prompt"], *booked]}, rng)


def test_the_expert_errs_at_its_rate():
    rng = np.random.default_rng(1)
    texts = [tour_booker(ROW, rng, error_rate=0.5) for _ in range(400)]
    assert texts.count("trains ham ulm") / 400 == pytest.approx(0.5, abs=0.08)
    assert set(texts) == {
        *("trains ham ulm", "trains ulm bonn", "hotels ulm", "hotels bonn"),
        *("book a1", "book a2", "book a3", "cancel"),
    }


def test_splits_share_no_text_and_have_the_legs_that_are_asked_for():
    train, test = draw(legs=[1, 3], size=300), draw(legs=[1, 3], split="test")
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in test}
    assert [row["family"] for row in train[:4]] == ["tour1", "tour3"] * 2
    with pytest.raises(StepError, match="lower `size`"):
        draw(split="test", test_share=1e-9, size=2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"metadata": None}, "use problems of `tours`"),
        (ROW | {"metadata": "{}"}, "its metadata are not those of a tour"),
        (ROW | {"metadata": "[]"}, "its metadata are not those of a tour"),
        (change(tour=["ham"]), "its metadata are not those of a tour"),
        (change(trains={"ham ulm": {"a1": [6, 9]}}), "its metadata are not those of a tour"),
        (change(budget=88), "complete its tour in time within the budget of 88"),
        (change(tour=["ham", "bonn"]), "complete its tour in time within the budget of 92"),
    ],
)
def test_a_row_without_a_tour_that_can_be_booked_is_refused(row, message):
    with pytest.raises(StepError, match=message):
        begin(row)


@pytest.mark.parametrize(
    "action", ["", "book", "book " + "x" * 100_000, "cancel all", "\x00", "trains", "book a1\nbook inn"]
)
def test_hostile_actions_change_nothing(action):
    episode = begin()
    assert not episode.step(action).ok
    assert episode.save() == {"booked": []}
