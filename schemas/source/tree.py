"""A recipe as written: plain values with their places in the files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from schemas.errors import Problem, RecipeError, printable

SCHEDULES = frozenset({"linear", "cosine", "piecewise"})
REPLACE = "$replace"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the tree: a dict of nodes, a list of nodes or a scalar; `key` is where its key stands, if any."""

    value: Any
    mark: Mark
    key: Mark | None = None
    is_joined: bool = False
    """Whether it is a text of digits that were joined from numbers, which is a number where one is wanted."""

    @property
    def is_map(self) -> bool:
        """Whether it has keys."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether it has items."""
        return isinstance(self.value, list)

    @property
    def where(self) -> Mark:
        """The key's place, or the value's where there is no key."""
        return self.key or self.mark

    def get(self, key: str) -> "Node | None":
        """Return the child under a key, or None (also for scalars and lists)."""
        return self.value.get(key) if self.is_map else None

    def plain(self) -> Any:
        """Return the value without marks."""
        if self.is_map:
            return {k: v.plain() for k, v in self.value.items()}
        return [v.plain() for v in self.value] if self.is_list else self.value

    def with_value(self, value: Any) -> "Node":
        """Return another value at the same place."""
        return replace(self, value=value)

    def without(self, *keys: str) -> "Node":
        """Return a map without some of its keys."""
        return self.with_value({k: v for k, v in self.value.items() if k not in keys})

    def children(self) -> Iterator[tuple[str | int, "Node"]]:
        """Yield keys or indices with their nodes."""
        if self.is_map:
            yield from self.value.items()
        elif self.is_list:
            yield from enumerate(self.value)


def make_nodes(value: Any, mark: Mark) -> Node:
    """Return a plain value as nodes that all stand at one place."""
    if isinstance(value, Mapping):
        return Node({str(k): replace(make_nodes(v, mark), key=mark) for k, v in value.items()}, mark)
    if isinstance(value, list | tuple):
        return Node([make_nodes(v, mark) for v in value], mark)
    return Node(value, mark)


def make_problem(mark: Mark, path: str, message: str, advice: str = "") -> Problem:
    """Return a problem at a place, in words that a terminal can show whatever the recipe holds."""
    return Problem(mark.file, mark.line, mark.column, printable(path), printable(message), printable(advice))


def make_error(mark: Mark, path: str, message: str, advice: str = "") -> RecipeError:
    """Return an error of one problem."""
    return RecipeError([make_problem(mark, path, message, advice)])


def parse_index(text: str, length: int) -> int | None:
    """Return the index in a list of `length` items that a key means, or None."""
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if is_number and int(text) < length else None


def join_path(*parts: str | int) -> str:
    """Return a dotted path."""
    if len(parts) == 2 and "" not in parts:  # nearly every call, and there are thousands for a recipe
        return f"{parts[0]}.{parts[1]}"
    return ".".join(str(p) for p in parts if p != "")


def merge_nodes(base: Node, over: Node, *, keep: bool = False) -> Node:
    """Return `over` merged onto `base`: maps merge key by key, everything else is replaced.

    A map replaces the one below it as a whole when it says `$replace: true`, names another function (`use`) or another
    `kind`, or is another kind of schedule: the keys of one mean nothing to the other. With `keep` the result keeps
    `$replace`, because it is itself merged onto something later, as a profile is.
    """
    if over.is_map and (marker := over.get(REPLACE)) is not None:
        if marker.value is True:
            return over if keep else over.without(REPLACE)
        over = over.without(REPLACE)
    if not (base.is_map and over.is_map) or _is_other_thing(base, over):
        return over
    merged = dict(base.value)
    for key, child in over.value.items():
        below = merged[key] if key in merged else Node(None, child.mark)
        merged[key] = merge_nodes(below, child, keep=keep)
    return replace(over, value=merged)


def _is_other_thing(base: Node, over: Node) -> bool:
    for name in ("use", "kind"):
        one, other = base.get(name), over.get(name)
        if one is not None and other is not None and one.value != other.value:
            return True
    both = (set(base.value), set(over.value))
    return both[0] != both[1] and all(len(keys) == 1 and keys <= SCHEDULES for keys in both)
