"""Negotiation: two players divide goods that are worth different things to them; perfect play has an exact value.

The players take turns. A turn is an offer, the goods that its speaker would keep (`2,0`), or `yes` to the offer on the
table. Every offer that is made makes the goods worth less: the first of three counts whole, the second two thirds, the
third one third; a refusal of the last ends the game without anything. Both know what the goods are worth to both, so
backward induction solves the game: a player accepts what is worth at least as much as its own next offer would be.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.samples.conversation import NextTurn, RoleTurn
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row
from schemas.errors import StepError

Goods = tuple[int, ...]
YES, NO = "yes", "no"
MOST_GOODS, MOST_WORTH, KINDS = 3, 5, 2
ILLEGAL = -1.0
"""What a player earns for a turn that is neither an offer nor an answer."""
DRAWS_PER_ROW = 40


@dataclass(frozen=True)
class View:
    """What the player to move sees."""

    goods: Goods
    """How many there are of each kind."""
    mine: Goods
    """What one of each kind is worth to the player."""
    theirs: Goods
    left: int
    """Offers that may still be made."""
    offer: Goods | None = None
    """What the other player would keep; None before the first offer."""

    def write(self) -> str:
        """Return the view as text: `goods 2,1 mine 3,1 theirs 1,4 left 2 they keep 2,0`."""
        text = f"goods {write(self.goods)} mine {write(self.mine)} theirs {write(self.theirs)} left {self.left}"
        return text if self.offer is None else f"{text} they keep {write(self.offer)}"


@dataclass(frozen=True)
class Plan:
    """The best offer, and what the player who makes it and the other get from then on if both play perfectly.

    Values are shares of what all goods are worth to the player, times the offers that may be made.
    """

    keep: Goods
    own: Fraction
    other: Fraction


def write(numbers: Goods) -> str:
    """Return numbers with commas between them."""
    return ",".join(map(str, numbers))


def read(text: str, most: Goods) -> Goods | None:
    """Return the numbers that a text names, one for each kind, up to `most` of it; None for anything else."""
    parts = text.strip().split(",")
    if len(parts) != len(most) or not all(len(part) == 1 and part in "0123456789" for part in parts):
        return None
    numbers = tuple(map(int, parts))
    return numbers if all(n <= m for n, m in zip(numbers, most, strict=True)) else None


def read_view(text: str) -> View | None:
    """Return the view that a text shows; None for another text."""
    head, _, offered = text.partition(" they keep ")
    words = head.split(" ")
    if len(words) != 8 or words[::2] != ["goods", "mine", "theirs", "left"] or words[7] not in list("0123456789"):
        return None
    kinds = words[1].count(",") + 1
    goods, mine, theirs = (read(part, (9,) * kinds) for part in words[1:7:2])
    if goods is None or mine is None or theirs is None or not any(goods):
        return None
    view = View(goods, mine, theirs, int(words[7]), read(offered, goods) if offered else None)
    return view if view.write() == text else None


def compute_share(kept: Goods, worth: Goods, goods: Goods) -> Fraction:
    """Return what some goods are worth, as a share of what all of them are."""
    total = sum(n * w for n, w in zip(goods, worth, strict=True))
    return Fraction(sum(n * w for n, w in zip(kept, worth, strict=True)), total) if total else Fraction(0)


def subtract(goods: Goods, kept: Goods) -> Goods:
    """Return the goods that are left for the other player."""
    return tuple(n - k for n, k in zip(goods, kept, strict=True))


@cache
def solve(goods: Goods, mine: Goods, theirs: Goods, left: int) -> Plan:
    """Return the best offer of the player to move with `left` offers, at least one.

    Of offers that are worth as much to the player, the one that is worth most to the other.
    """
    later = solve(goods, theirs, mine, left - 1) if left > 1 else Plan(goods, Fraction(0), Fraction(0))
    best = Plan(goods, later.other, later.own)  # keeps everything, which the other refuses
    for keep in product(*(range(n, -1, -1) for n in goods)):
        other = left * compute_share(subtract(goods, keep), theirs, goods)
        own = left * compute_share(keep, mine, goods)
        if other >= later.own and (own, other) > (best.own, best.other):
            best = Plan(keep, own, other)
    return best


def choose_turn(view: View, rng: np.random.Generator, errors: float = 0.0) -> str:
    """Return the best turn in a view, or with probability `errors` any that the game allows."""
    if rng.random() < errors:
        turns = [write(keep) for keep in product(*(range(n + 1) for n in view.goods))] if view.left else [NO]
        return str(rng.choice([*turns, *([] if view.offer is None else [YES])]))
    plan = solve(view.goods, view.mine, view.theirs, view.left) if view.left else None
    if view.offer is not None:
        accepted = (view.left + 1) * compute_share(subtract(view.goods, view.offer), view.mine, view.goods)
        if plan is None or accepted >= plan.own:
            return YES
    assert plan is not None  # a game begins with an offer that may be made
    return write(plan.keep)


@dataclass(frozen=True)
class Table:
    """A game in progress; the player to move is `view`'s."""

    view: View
    rounds: int
    """Offers that the whole game has."""

    def move(self, text: str) -> "Table | tuple[float, float] | None":
        """Return the table after a turn; after the last one what its player and the other earn; None if illegal."""
        view = self.view
        if text.strip() == YES and view.offer is not None:
            scale = Fraction(view.left + 1, self.rounds)
            own = compute_share(subtract(view.goods, view.offer), view.mine, view.goods)
            return float(scale * own), float(scale * compute_share(view.offer, view.theirs, view.goods))
        if not view.left:
            return (0.0, 0.0) if text.strip() == NO else None
        keep = read(text, view.goods)
        return (
            None if keep is None else Table(View(view.goods, view.theirs, view.mine, view.left - 1, keep), self.rounds)
        )


def begin(row: Row) -> Table:
    """Return the game that a row begins with; raise StepError for a row of another kind."""
    text = str(row["prompt"][-1]["content"])
    view = read_view(text)
    if view is None or view.offer is not None or not view.left:
        example = View((2, 1), (3, 1), (1, 4), 3).write()
        raise StepError(f"negotiation: row {row.get('id')}: {text[:60]!r} is no beginning of a game, such as {example}")
    return Table(view, view.left)


def negotiations(
    *,
    split: Split,
    size: Size,
    seed: int = 0,
    rounds: Annotated[list[Annotated[int, Field(ge=1, le=6)]], Field(min_length=1)] = [2, 3],  # noqa: B006 — never changed
    exchange: bool = False,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Draw goods of two kinds and what they are worth to two players, for the world `negotiation`.

    `rounds` are the offers that a game may have, more of which need more foresight; the player who moves first gets
    something in perfect play. No goods and worths of one split are those of the other, with another number of rounds or
    in another order. With `exchange` every problem is there twice, for the turn order `negotiation`: in the second the
    role that the recipe names last moves first. Raise StepError if there are fewer than `size`.
    """
    rng = np.random.default_rng(seed)

    def draw(_: dict[str, Row]) -> Row | None:
        goods, mine, theirs = (tuple(map(int, rng.integers(low, high + 1, KINDS))) for low, high in limits)
        left = int(rng.choice(rounds))
        kinds = sorted(zip(goods, mine, theirs, strict=True))
        if not (any(mine) and any(theirs)) or solve(goods, mine, theirs, left).own == 0:
            return None
        fits = is_in_split(hash_text(f"negotiation {kinds}"), split, test_share)
        return _make_row(View(goods, mine, theirs, left), 0) if fits else None

    limits = ((1, MOST_GOODS), (0, MOST_WORTH), (0, MOST_WORTH))
    rows = draw_rows(draw, size, DRAWS_PER_ROW * size, "negotiations", split, "lower `size`, or add `rounds`")
    again = [_make_row(begin(row).view, 1) for row in rows] if exchange else []
    return rows + again


def _make_row(view: View, leader: int) -> Row:
    value = solve(view.goods, view.mine, view.theirs, view.left).own / view.left
    about = {"value": round(float(value), 4), "leader": leader}
    return make_row(f"negotiation{view.left}", view.write(), str(about["value"]), about, salt=f"negotiation {leader}")


def negotiator(row: Row, rng: np.random.Generator, *, errors: Rate = 0.0) -> str:
    """Write the best turn for what was shown last, or with probability `errors` any turn that the game allows."""
    view = read_view(str(row["prompt"][-1]["content"]))
    if view is None:
        raise StepError(f"negotiator: row {row.get('id')}: its last message shows no negotiation")
    return choose_turn(view, rng, errors)


def negotiation(roles: Sequence[str], turns: Sequence[RoleTurn], row: Row) -> NextTurn:
    """Negotiate between two roles about the goods of a row; each is shown the goods, both worths and the last offer.

    Both earn the share that the goods they get are worth to them, less with every offer. A turn that is no turn costs
    its role 1 and ends the game without anything for the other. Raise StepError for another number of roles, and for a
    row without goods.
    """
    if len(roles) != 2:
        raise StepError(f"turn_order negotiation: two roles play, not {len(roles)}")
    leader = int(json.loads(row.get("metadata") or "{}").get("leader", 0))
    players = [roles[leader], roles[1 - leader]]
    table = begin(row)
    for place, turn in enumerate(turns):
        speaker, other = players[place % 2], players[1 - place % 2]
        after = table.move(turn.text)
        if after is None:
            return NextTurn(None, rewards={speaker: ILLEGAL, other: 0.0})
        if isinstance(after, tuple):
            return NextTurn(None, rewards={speaker: after[0], other: after[1]})
        table = after
    return NextTurn(players[len(turns) % 2], table.view.write())


def negotiation_opponent(
    role: str, turns: Sequence[RoleTurn], message: str, row: Row, rng: np.random.Generator, *, errors: Rate = 0.0
) -> str:
    """Play perfectly, but for a share of `errors`, in the turn order `negotiation`."""
    table: Table | tuple[float, float] | None = begin(row)
    for turn in turns:
        table = table.move(turn.text) if isinstance(table, Table) else None
    if not isinstance(table, Table):
        raise StepError("script negotiation_opponent: it plays in the turn order `negotiation`; set that")
    return choose_turn(table.view, rng, errors)
