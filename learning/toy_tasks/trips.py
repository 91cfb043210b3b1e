"""Trips between six cities: trains, sights and hotels from a cache, to be combined within hours and a budget.

An itinerary is `train 8-10 30, zoo 11-13 5, inn 40`: a train, a sight after its arrival, and a hotel, each with a
price.
"""

import re
from functools import lru_cache
from itertools import product

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, is_in_split, make_row, read_metadata

CITIES = ("ham", "ulm", "jena", "bonn", "kiel", "trier")
SIGHTS = ("zoo", "dom", "park", "pier", "fort", "mill")
HOTELS = ("inn", "hut", "loft", "grand")
PART = re.compile(r"([a-z]+) (?:(\d{1,2})-(\d{1,2}) )?(\d{1,3})")
"""A train or sight with its hours, or a hotel, and a price."""
SLACK = 8
"""The budget exceeds the cheapest itinerary by less than this."""
DRAWS = 50
"""Draws per requested problem after which the space counts as exhausted."""
Replies = dict[str, dict[str, str]]


@lru_cache(maxsize=16)
def make_cache(world: int) -> Replies:
    """Return what the tools `trains`, `sights` and `hotels` reply: two trains for each pair, two of each in a city."""
    rng = np.random.default_rng([world, len(CITIES)])

    def draw_hours(names: list[str], first: int, last: int, most: int) -> str:
        starts = [int(rng.integers(first, last)) for _ in names]
        ends = [start + int(rng.integers(1, 4)) for start in starts]
        return ", ".join(
            f"{name} {a}-{b} {rng.integers(5, most)}" for name, a, b in zip(names, starts, ends, strict=True)
        )

    def choose(names: tuple[str, ...]) -> list[str]:
        return [names[int(i)] for i in rng.choice(len(names), size=2, replace=False)]

    trains = {f"{a} {b}": draw_hours(["train"] * 2, 6, 12, 60) for a in CITIES for b in CITIES if a != b}
    sights = {city: draw_hours(choose(SIGHTS), 9, 17, 20) for city in CITIES}
    hotels = {city: ", ".join(f"{name} {rng.integers(20, 90)}" for name in choose(HOTELS)) for city in CITIES}
    return {"trains": trains, "sights": sights, "hotels": hotels}


def is_feasible(itinerary: str, budget: int) -> bool:
    """Return whether it has a train, then a sight that begins after its arrival, and a hotel, within the budget.

    Whether there are such trains, sights and hotels is not asked.
    """
    parts = [PART.fullmatch(part.strip()) for part in itinerary.split(",")]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len(parts) != 3:
        return False
    train, sight, hotel = found
    is_formed = train[1] == "train" and sight[1] in SIGHTS and hotel[1] in HOTELS and hotel[2] is None
    if not is_formed or train[2] is None or sight[2] is None:
        return False
    hours = [int(part[i]) for part in (train, sight) for i in (2, 3)]
    in_time = hours[0] < hours[1] <= hours[2] < hours[3]
    return in_time and sum(int(part[4]) for part in found) <= budget


def trips(*, size: Size, seed: int = 0, split: Split, test_share: TestShare = 0.2, world: int = 0) -> list[Row]:
    """Generate `size` requests such as `ham to ulm for 85`; some itinerary fits, and some do not.

    The metadata have the cache of the tools (tool `recorded`), the budget and a script. `world` chooses the cache. The
    budget is a little above the price of the cheapest itinerary in time. Raise StepError if the space holds too few.
    """
    rng, cache = np.random.default_rng([seed, split == "test", world]), make_cache(world)

    def draw(rows: dict[str, Row]) -> Row | None:
        start, end = (CITIES[int(i)] for i in rng.choice(len(CITIES), size=2, replace=False))
        calls = {"trains": f"{start} {end}", "sights": end, "hotels": end}
        offers = [cache[tool][query].split(", ") for tool, query in calls.items()]
        plans = sorted((", ".join(parts) for parts in product(*offers)), key=_price)
        fitting = [plan for plan in plans if is_feasible(plan, 1000)]
        if not fitting:
            return None
        budget = _price(fitting[0]) + int(rng.integers(SLACK))
        if all(is_feasible(plan, budget) for plan in plans):
            return None
        script = [*(f"{tool}: {query}" for tool, query in calls.items()), fitting[0]]
        about = {"budget": budget, "replies": cache, "script": script}
        row = make_row("trips", f"{start} to {end} for {budget}", None, about, salt=f"trips {world}")
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, DRAWS * size, "trips", split, "lower `size`")


def read_budget(row: Row) -> int:
    """Return the budget of a request. Raise StepError for another row."""
    return read_metadata(row, "trips", lambda notes: int(notes["budget"]))


def _price(plan: str) -> int:
    return sum(int(part.rpartition(" ")[2]) for part in plan.split(", "))
