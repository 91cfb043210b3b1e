"""A small web shop as text: pages with links, a search field, options of a product, and orders to carry out.

    buy: red cup, large, code K7      the order (first message only)
    red cup                           the page: its title,
    size: [small] [large]             its elements in brackets,
    code:                             its fields
    [buy] [cup] [shop]

`search cup` shows a shelf, `click large` clicks on an element of the page, and `fill code K7` fills in a field. Buying
ends the visit; an order is carried out if the product, all requested options and the code are right.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split, read_metadata
from schemas.errors import StepError

DEPARTMENTS = {
    "kitchen": ("cup", "pan", "jar"),
    "garden": ("rake", "pot", "hose"),
    "office": ("pen", "pad", "lamp"),
}
COLOURS = ("red", "blue", "green", "black", "white", "gold")
OPTIONS = {"size": ("small", "large"), "wrap": ("plain", "boxed")}
CODES = tuple(f"{letter}{digit}" for letter in "KMT" for digit in range(2, 8))
HOME, NEXT, BUY, CODE = "shop", "next", "buy", "code"
LINE_BREAK = re.compile(r"\r\n|\r|\n")
PER_PAGE = 2
"""Products on one page of a shelf."""
MAX_DRAWS = 400
"""Orders drawn per problem after which there are too few."""


@dataclass(frozen=True)
class Shop:
    """A site: what stands on its shelves, and what its products let a visitor choose."""

    shelves: dict[str, list[str]]
    """Products of each noun, in the order of the pages."""
    options: dict[str, list[str]]
    """Names of the options of each product."""
    offer: str
    """The product that the first page links to."""
    searches: bool
    """Whether pages have a search field."""


@dataclass(frozen=True)
class Order:
    """What is to be bought."""

    product: str
    options: dict[str, str]
    code: str | None

    def __str__(self) -> str:
        """Return the order as the model reads it."""
        return (
            f"buy: {', '.join([self.product, *self.options.values(), *([f'code {self.code}'] if self.code else [])])}"
        )


@dataclass(frozen=True)
class Visit:
    """The state of a visitor: the page, and what was chosen on it."""

    page: str = HOME
    number: int = 0
    """Page of a shelf, from 0."""
    chosen: tuple[tuple[str, str], ...] = ()
    code: str = ""
    bought: bool = False


def show_page(shop: Shop, visit: Visit) -> str:
    """Return the page as text."""
    buttons = " ".join(f"[{label}]" for label in list_links(shop, visit))
    if visit.page == HOME:
        return f"{HOME}\n{buttons}"
    if visit.page in DEPARTMENTS:
        return f"{visit.page}\n{buttons}"
    if visit.page in shop.shelves:
        pages = -(-len(shop.shelves[visit.page]) // PER_PAGE)
        return f"{visit.page} {visit.number + 1}/{pages}\n{buttons}"
    chosen = dict(visit.chosen)
    lines = [visit.page]
    for name in shop.options[visit.page]:
        values = " ".join(f"[{value}]" for value in OPTIONS[name])
        lines.append(f"{name}{' ' if name in chosen else ''}{chosen.get(name, '')}: {values}")
    return "\n".join([*lines, f"{CODE}:{visit.code and ' '}{visit.code}", buttons])


def list_links(shop: Shop, visit: Visit) -> dict[str, Visit]:
    """Return the page behind each link or button, without the options of a product."""
    page, home = visit.page, {HOME: Visit()}
    if page == HOME:
        departments = [name for name, nouns in DEPARTMENTS.items() if set(nouns) & set(shop.shelves)]
        return {name: Visit(name) for name in [*departments, shop.offer]}
    if page in DEPARTMENTS:
        return {noun: Visit(noun) for noun in DEPARTMENTS[page] if noun in shop.shelves} | home
    if page in shop.shelves:
        first = visit.number * PER_PAGE
        links = {name: Visit(name) for name in shop.shelves[page][first : first + PER_PAGE]}
        more = {NEXT: Visit(page, visit.number + 1)} if first + PER_PAGE < len(shop.shelves[page]) else {}
        return links | more | ({page: Visit(page)} if visit.number else {}) | home
    return {BUY: replace(visit, bought=True), page.rpartition(" ")[2]: Visit(page.rpartition(" ")[2])} | home


def as_typed(text: str) -> str:
    """Return what a field of one line holds when a text is typed into it: line breaks become spaces."""
    return LINE_BREAK.sub(" ", text)


def act(shop: Shop, visit: Visit, action: str) -> Visit | None:
    """Return the state after an action; None if the page does not allow it."""
    verb, _, rest = action.strip().partition(" ")
    if visit.bought:
        return None
    if verb == "search":
        noun = as_typed(rest)
        return Visit(noun) if shop.searches and noun in shop.shelves else None
    options = shop.options.get(visit.page, [])
    if verb == "fill":
        field, _, text = rest.partition(" ")
        return replace(visit, code=as_typed(text)) if visit.page in shop.options and field == CODE and text else None
    if verb != "click":
        return None
    for name in options:
        if rest in OPTIONS[name]:
            return replace(visit, chosen=tuple(sorted({**dict(visit.chosen), name: rest}.items())))
    return list_links(shop, visit).get(rest)


def is_carried_out(order: Order, visit: Visit) -> bool:
    """Return whether the visitor has bought what was ordered."""
    right = order.options.items() <= dict(visit.chosen).items() and order.code in (None, visit.code)
    return visit.bought and visit.page == order.product and right


def list_actions(shop: Shop, order: Order, visit: Visit) -> Iterator[str]:
    """Yield the actions that the page allows, searches and codes as far as the order or the shop names them."""
    if shop.searches:
        yield from (f"search {noun}" for noun in shop.shelves)
    for name in shop.options.get(visit.page, []):
        yield from (f"click {value}" for value in OPTIONS[name])
    if visit.page in shop.options and order.code:
        yield f"fill {CODE} {order.code}"
    yield from (f"click {label}" for label in list_links(shop, visit))


def solve(shop: Shop, order: Order, visit: Visit) -> list[str] | None:
    """Return the actions of a shortest visit that carries out the order; None if there is none.

    What was chosen on a page is lost with the page: a shortest visit goes to the product, and chooses there.
    """
    if visit.bought:
        return [] if is_carried_out(order, visit) else None
    route = _find_route(shop, order, visit)
    if route is None or not order.options.keys() <= set(shop.options[order.product]):
        return None
    chosen, code = (dict(visit.chosen), visit.code) if visit.page == order.product else ({}, "")
    clicks = [f"click {value}" for name, value in order.options.items() if chosen.get(name) != value]
    return [*route, *clicks, *([f"fill {CODE} {order.code}"] if order.code not in (None, code) else []), f"click {BUY}"]


def _find_route(shop: Shop, order: Order, visit: Visit) -> list[str] | None:
    """Return a shortest way from a page to the product of the order; None if no shelf has it."""
    product, noun, links = order.product, order.product.rpartition(" ")[2], list_links(shop, visit)
    if product not in shop.shelves.get(noun, []):
        return None
    if visit.page == product:
        return []
    if product in links:
        return [f"click {product}"]
    ahead = shop.shelves[noun].index(product) // PER_PAGE
    home = [] if visit.page == HOME else [f"click {HOME}"]
    if visit.page == noun and visit.number <= ahead:
        first, ahead = [], ahead - visit.number
    elif shop.searches:
        first = [f"search {noun}"]
    elif noun in links:
        first = [f"click {noun}"]
    else:
        department = next(name for name, nouns in DEPARTMENTS.items() if noun in nouns)
        first = [*home, f"click {department}", f"click {noun}"]
    route = [*first, *[f"click {NEXT}"] * ahead, f"click {product}"]
    offered = [*home, f"click {product}"]
    return offered if product == shop.offer and len(offered) < len(route) else route


def read_order(row: Row) -> tuple[Shop, Order]:
    """Return the shop and the order of a row; raise StepError if it has none, or one that cannot be carried out."""
    text = read_metadata(row, "web_orders", lambda about: json.dumps([about["shop"], about["order"]]))
    try:
        shop, order, plan = _read(text)
    except (TypeError, KeyError, AttributeError) as error:
        raise StepError(
            f"row {row.get('id')}: its shop cannot be read: {error}; use problems of `web_orders`"
        ) from error
    if plan is None:
        raise StepError(f"row {row.get('id')}: its order cannot be carried out; use problems of `web_orders`")
    return shop, order


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Shop, Order, list[str] | None]:
    shop, order = json.loads(text)
    made = Shop(**shop), Order(**order)
    return *made, solve(*made, Visit())


def web_orders(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    clicks: Annotated[list[Annotated[int, Field(ge=2, le=9)]], Field(min_length=1)] = [2, 3, 4, 5, 6, 7, 8],  # noqa: B006
    nouns: Annotated[int, Field(ge=1, le=9)] = 4,
    products: Annotated[int, Field(ge=1, le=6)] = 6,
    searches: bool = True,
    instruction: str = "",
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` orders in different shops for the train or test split, cycling through `clicks`.

    `clicks` is the difficulty: the number of actions of a shortest visit, also in the row's family (`web5`). A shop has
    shelves for `nouns` kinds of goods with up to `products` each; with `searches` a search leads to a shelf directly.
    `instruction` begins the prompt. Raise StepError if there are too few.
    """
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row | None:
        wanted = clicks[len(rows) % len(clicks)]
        shop, order = draw_order(rng, nouns, products, searches=searches)
        plan = solve(shop, order, Visit())
        if plan is None or len(plan) != wanted:
            return None
        row = make_order_row(shop, order, wanted, instruction)
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, MAX_DRAWS * size, "web_orders", split, "lower `size`, or change `clicks`")


def make_order_row(shop: Shop, order: Order, clicks: int, instruction: str = "") -> Row:
    """Return the row of an order that an expert carries out in so many actions."""
    about = {"shop": asdict(shop), "order": asdict(order)}
    return {
        "id": hash_text(json.dumps(about, sort_keys=True)),
        "prompt": [{"role": "user", "content": f"{instruction}{order}\n{show_page(shop, Visit())}"}],
        "answer": None,
        "family": f"web{clicks}",
        "metadata": json.dumps(about | {"clicks": clicks}),
    }


def draw_order(rng: np.random.Generator, nouns: int, products: int, *, searches: bool) -> tuple[Shop, Order]:
    """Return a random shop, and an order in it."""
    every = [noun for group in DEPARTMENTS.values() for noun in group]
    chosen = [every[int(i)] for i in sorted(rng.permutation(len(every))[:nouns])]
    shelves = {
        noun: [f"{COLOURS[int(i)]} {noun}" for i in rng.permutation(len(COLOURS))[: int(rng.integers(1, products + 1))]]
        for noun in chosen
    }
    names = [name for shelf in shelves.values() for name in shelf]
    options = {name: [option for option in OPTIONS if rng.random() < 0.6] for name in names}
    shop = Shop(shelves, options, names[int(rng.integers(len(names)))], searches)
    # The product on offer is one of many: without this, orders of two or three actions are rare.
    product = shop.offer if rng.random() < 0.2 else names[int(rng.integers(len(names)))]
    wanted = {name: OPTIONS[name][int(rng.integers(2))] for name in options[product] if rng.random() < 0.8}
    code = CODES[int(rng.integers(len(CODES)))] if rng.random() < 0.4 else None
    return shop, Order(product, wanted, code)


def web_shopper(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next action of a shortest visit that carries out the order, or sometimes another possible action.

    Where the prompt does not show all turns so far, for example with a `context`, it must show the present page.
    """
    shop, order = read_order(row)
    visit = _replay(shop, row)
    plan = solve(shop, order, visit)
    if not plan:
        raise StepError(f"teacher web_shopper: row {row['id']}: its order was settled by the actions in the prompt")
    if rng.random() >= error_rate:
        return plan[0]
    others = [action for action in list_actions(shop, order, visit) if action != plan[0]]
    return others[int(rng.integers(len(others)))]


def _replay(shop: Shop, row: Row) -> Visit:
    """Return the state after the actions in the prompt: they are all there, whatever pages a context leaves out."""
    visit = Visit()
    said = [str(message["content"]) for message in row["prompt"] if message["role"] == "assistant"]
    number = json.loads(row["metadata"]).get("turn", len(said))
    if number != len(said):
        raise StepError(
            f"teacher web_shopper: row {row['id']}: its prompt shows {len(said)} of {number} actions, but all are "
            "needed; use the context `newest_observation`, or none"
        )
    for action in said:
        visit = act(shop, visit, action) or visit
    return visit


def save_visit(visit: Visit) -> Row:
    """Return a state as JSON."""
    return asdict(visit) | {"chosen": [list(pair) for pair in visit.chosen]}


def restore_visit(saved: Mapping[str, object]) -> Visit:
    """Return the state that `save_visit` gave."""
    chosen = tuple((name, value) for name, value in saved["chosen"])  # pyright: ignore[reportGeneralTypeIssues]
    return Visit(**{**saved, "chosen": chosen})  # pyright: ignore[reportArgumentType]
