"""What a program over a long text is made of: total functions on texts and lists, none of which calls a model.

A model is called on pieces; everything between the calls is one of these. With `split` always making pieces smaller
than what it was given, every program of them ends.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce as fold
from itertools import product
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def split_text(text: str, k: int, separator: str = "") -> list[str]:
    """Return the text in at most k pieces of about equal length, cut after a `separator` where one is near.

    A cut moves back to the last separator of its piece; a piece without one is cut where it falls. Every piece is
    shorter than the text if the text has two characters and k is at least 2.
    """
    cuts = [0]
    for i in range(1, k):
        place = i * len(text) // k
        near = text.rfind(separator, cuts[-1], place) + len(separator) if separator else place
        cuts.append(near if cuts[-1] < near <= place else place)
    return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True) if a < b]


def apply_to_all(function: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Return the function's result for each item."""
    return [function(item) for item in items]


def keep_matching(keep: Callable[[A], bool], items: Iterable[A]) -> list[A]:
    """Return the items to keep, in their order."""
    return [item for item in items if keep(item)]


def reduce_items(operation: Callable[[A, A], A], items: Sequence[A], empty: A) -> A:
    """Return the items combined two by two from the left; `empty` if there are none."""
    return fold(operation, items) if items else empty


def concatenate(lists: Iterable[Iterable[A]]) -> list[A]:
    """Return one list of all, in order."""
    return [item for items in lists for item in items]


def make_pairs(left: Sequence[A], right: Sequence[B]) -> list[tuple[A, B]]:
    """Return every pair, the left item changing slowest."""
    return list(product(left, right))
