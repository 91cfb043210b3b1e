"""Tours that are booked with tools, as text: trains in order of time, a hotel at every stop, within a budget.

    tour: ham ulm bonn      the cities, in order
    stars: 3                the fewest stars of a hotel
    budget: 92              for all trains and hotels

`trains ham ulm` lists trains (`a1 6-9 30, a2 7-8 41, a3 2-5 12`: departure and arrival in hours, and the price),
`hotels ulm` lists hotels (`inn 3 stars 24, hut 1 stars 9`), `book a1` books the next train or hotel, and `cancel` takes
the last booking back. What is not possible changes nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split, read_metadata
from schemas.base import Schema
from schemas.errors import StepError

CITIES = ("ham", "ulm", "bonn", "kiel", "jena", "trier", "essen", "mainz")
HOTELS = ("inn", "hut", "loft", "grand", "park")
CHOICES = 3
"""Trains from one city to the next, and hotels of a city."""
MAX_DRAWS = 200
"""Problems drawn per problem after which there are too few."""
TRAINS, HOTEL_LIST, BOOK, CANCEL = "trains", "hotels", "book", "cancel"
REFUSED = "?"
"""First character of the answer to an action that is not possible."""

Legs = Annotated[list[Annotated[int, Field(ge=1, le=4)]], Field(min_length=1)]
Hours = Annotated[int, Field(ge=0)]
Price = Annotated[int, Field(ge=0)]


class Tour(Schema):
    """A request, and the trains and hotels that there are, as a row's metadata has them."""

    tour: Annotated[list[str], Field(min_length=2)]
    stars: int
    budget: Price
    trains: dict[str, dict[str, tuple[Hours, Hours, Price]]]
    """Departure, arrival and price of each train, by its route (`ham ulm`) and name."""
    hotels: dict[str, dict[str, tuple[int, Price]]]
    """Stars and price of each hotel, by its city and name."""

    @property
    def legs(self) -> int:
        """Return the number of trains that the tour needs; it needs as many hotels."""
        return len(self.tour) - 1

    def list_trains(self, leg: int) -> Mapping[str, tuple[int, int, int]]:
        """Return the trains of a leg by name."""
        return self.trains.get(f"{self.tour[leg]} {self.tour[leg + 1]}", {})

    def list_hotels(self, leg: int) -> Mapping[str, tuple[int, int]]:
        """Return the hotels of the city where a leg ends, by name."""
        return self.hotels.get(self.tour[leg + 1], {})

    def list_next(self, now: "Standing") -> Mapping[str, tuple[int, ...]]:
        """Return the trains or hotels of which one is booked next, by name; the price is the last number of each."""
        return self.list_hotels(now.leg) if now.is_hotel_next else self.list_trains(now.leg)


@dataclass(frozen=True)
class Standing:
    """Where bookings lead: the leg whose train or hotel is next, the hour of arrival and the money that is left."""

    leg: int
    is_hotel_next: bool
    hour: int
    left: int


def follow(tour: Tour, booked: Sequence[str]) -> Standing:
    """Return the standing after bookings, each a train and then a hotel of the next leg."""
    hour, left = 0, tour.budget
    for place, name in enumerate(booked):
        if place % 2 == 0:
            _, hour, price = tour.list_trains(place // 2)[name]
        else:
            _, price = tour.list_hotels(place // 2)[name]
        left -= price
    return Standing(len(booked) // 2, len(booked) % 2 == 1, hour, left)


def act(tour: Tour, booked: tuple[str, ...], action: str) -> tuple[tuple[str, ...], str, bool]:
    """Return the bookings after an action, its answer, and whether it was possible."""
    verb, _, what = " ".join(action.split()).partition(" ")
    if verb == TRAINS and what in tour.trains:
        offers = tour.trains[what].items()
        return booked, ", ".join(f"{name} {a}-{b} {price}" for name, (a, b, price) in offers), True
    if verb == HOTEL_LIST and what in tour.hotels:
        offers = tour.hotels[what].items()
        return booked, ", ".join(f"{name} {stars} stars {price}" for name, (stars, price) in offers), True
    if verb == CANCEL and not what and booked:
        return booked[:-1], f"cancelled {booked[-1]}; {_show(tour, booked[:-1])}", True
    if verb != BOOK:
        return booked, f"{REFUSED} no such action", False
    refusal = _explain_refusal(tour, follow(tour, booked), what)
    if refusal:
        return booked, f"{REFUSED} {refusal}", False
    booked = (*booked, what)
    return booked, f"booked {what}; {_show(tour, booked)}", True


def _explain_refusal(tour: Tour, now: Standing, name: str) -> str:
    """Return why the next booking cannot be this one, or an empty string."""
    if now.is_hotel_next:
        if name not in tour.list_hotels(now.leg):
            return f"a hotel in {tour.tour[now.leg + 1]} is next"
        stars, price = tour.list_hotels(now.leg)[name]
        if stars < tour.stars:
            return f"{name} has {stars} stars"
    else:
        if name not in tour.list_trains(now.leg):
            return f"a train from {tour.tour[now.leg]} to {tour.tour[now.leg + 1]} is next"
        departure, _, price = tour.list_trains(now.leg)[name]
        if departure < now.hour:
            return f"{name} departs before {now.hour}"
    return f"{name} costs {price}, {now.left} are left" if price > now.left else ""


def _show(tour: Tour, booked: Sequence[str]) -> str:
    now = follow(tour, booked)
    place = tour.tour[now.leg + now.is_hotel_next]
    return f"at {place} at {now.hour}, {now.left} left"


def find_cheapest(tour: Tour, booked: Sequence[str]) -> tuple[int, list[str]] | None:
    """Return the price and names of the cheapest bookings that complete a tour; None if none is within its budget."""
    now = follow(tour, booked)
    if now.leg == tour.legs:
        return 0, []
    ways: list[tuple[int, list[str]]] = []
    for name, price in _list_bookable(tour, now):
        if (rest := find_cheapest(tour, [*booked, name])) is not None:
            ways.append((price + rest[0], [name, *rest[1]]))
    return min(ways, default=None)


def _list_bookable(tour: Tour, now: Standing) -> Iterator[tuple[str, int]]:
    """Yield the names and prices of what can be booked next."""
    for name, about in tour.list_next(now).items():
        if not _explain_refusal(tour, now, name):
            yield name, about[-1]


def read_tour(row: Row) -> Tour:
    """Return the tour of a row. Raise StepError if it has none, or one that cannot be booked within its budget."""
    return _read(read_metadata(row, "tours", json.dumps), str(row.get("id")))


@lru_cache(maxsize=4096)
def _read(text: str, name: str) -> Tour:
    try:
        about = json.loads(text)
        tour = Tour.model_validate({field: about[field] for field in Tour.model_fields if field in about})
    except (ValidationError, TypeError) as error:
        raise StepError(f"row {name}: its metadata are not those of a tour: {error}") from error
    if find_cheapest(tour, []) is None:
        raise StepError(
            f"row {name}: no trains and hotels complete its tour in time within the budget of {tour.budget}"
        )
    return tour


def tours(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    legs: Legs = [1, 2, 3],  # noqa: B006
    slack: Annotated[int, Field(ge=0)] = 4,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` tours to book for the train or test split, cycling through `legs`.

    `legs` is the difficulty: how many trains and hotels a tour needs; it is also in the row's family (`tour2`). A
    budget exceeds the cheapest bookings by less than `slack` + 1. Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, slack])

    def draw(rows: dict[str, Row]) -> Row | None:
        count = legs[len(rows) % len(legs)]
        tour = draw_tour(rng, count, slack)
        row = None if tour is None else make_tour_row(tour)
        return row if row is not None and is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, MAX_DRAWS * size, "tours", split, "lower `size`, or change `legs`")


def draw_tour(rng: np.random.Generator, legs: int, slack: int) -> Tour | None:
    """Return a tour whose budget is little more than its cheapest bookings cost; None if no trains fit in time."""
    cities = [str(city) for city in rng.permutation(CITIES)[: legs + 1]]
    trains: dict[str, dict[str, tuple[int, int, int]]] = {}
    for leg, (start, end) in enumerate(pairwise(cities)):
        departures = [4 * leg + int(rng.integers(10)) for _ in range(CHOICES)]
        trains[f"{start} {end}"] = {
            f"{'abcd'[leg]}{number}": (hour, hour + int(rng.integers(1, 7)), int(rng.integers(5, 50)))
            for number, hour in enumerate(departures, start=1)
        }
    hotels = {
        city: {
            str(name): (int(rng.integers(1, 6)), int(rng.integers(10, 60)))
            for name in rng.choice(HOTELS, size=CHOICES, replace=False)
        }
        for city in cities[1:]
    }
    offered = {"trains": trains, "hotels": hotels}
    stars = int(rng.integers(1, 5))
    open_tour = Tour.model_validate({"tour": cities, "stars": stars, "budget": 10**6, **offered})
    cheapest = find_cheapest(open_tour, [])
    if cheapest is None:
        return None
    return open_tour.model_copy(update={"budget": cheapest[0] + int(rng.integers(slack + 1))})


def make_tour_row(tour: Tour) -> Row:
    """Return the row of a tour; its id is the hash of its text, so that no two problems have the same text."""
    text = f"tour: {' '.join(tour.tour)}\nstars: {tour.stars}\nbudget: {tour.budget}"
    return {
        "id": hash_text(f"tours\n{text}"),
        "prompt": [{"role": "user", "content": text}],
        "answer": None,
        "family": f"tour{tour.legs}",
        "metadata": json.dumps(tour.model_dump(mode="json") | {"steps": 4 * tour.legs}),
    }


def tour_booker(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next action: first look at all trains and hotels, then book the cheapest, cancel where nothing fits.

    At the rate `error_rate` it writes another action. The prompt must show all turns so far. Raise StepError for a row
    without a tour, or one that is booked.
    """
    tour = read_tour(row)
    booked: tuple[str, ...] = ()
    said = [str(message["content"]) for message in row["prompt"] if message["role"] == "assistant"]
    for text in said:
        booked, _, _ = act(tour, booked, text)
    if len(booked) == 2 * tour.legs:
        raise StepError(f"teacher tour_booker: row {row['id']}: its tour was booked by the turns in the prompt")
    best = _choose(tour, booked, {" ".join(text.split()) for text in said})
    others = [action for action in _list_actions(tour, booked) if action != best]
    return others[int(rng.integers(len(others)))] if rng.random() < error_rate else best


def _list_lookups(tour: Tour) -> list[str]:
    return [*(f"{TRAINS} {a} {b}" for a, b in pairwise(tour.tour)), *(f"{HOTEL_LIST} {city}" for city in tour.tour[1:])]


def _choose(tour: Tour, booked: tuple[str, ...], said: set[str]) -> str:
    unseen = [action for action in _list_lookups(tour) if action not in said]
    if unseen:
        return unseen[0]
    cheapest = find_cheapest(tour, booked)
    return CANCEL if cheapest is None else f"{BOOK} {cheapest[1][0]}"


def _list_actions(tour: Tour, booked: tuple[str, ...]) -> list[str]:
    now = follow(tour, booked)
    return [*_list_lookups(tour), *(f"{BOOK} {name}" for name in tour.list_next(now)), CANCEL]
