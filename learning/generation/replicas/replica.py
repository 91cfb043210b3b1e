"""A client's record of one replica: the work that it was sent and has not returned."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from learning.parallel.actors import Remote
from learning.samples.engine_protocol import Generation, Request, Sampling

Ended = tuple[int, Generation]
"""A completion with the ticket of its request."""


@dataclass(eq=False)
class Piece:
    """Completions of one request that are sent to one replica; `left` are the random streams not returned yet."""

    ticket: int
    request: Request
    sampling: Sampling
    left: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = self.left or set(range(self.request.first, self.request.first + self.request.n))

    @property
    def prompt(self) -> tuple[int, ...]:
        """Return the prompt of its completions."""
        return tuple(self.request.prompt_ids)

    def again(self) -> Iterator["Piece"]:
        """Yield the rest of it as pieces of consecutive random streams."""
        runs: list[list[int]] = []
        for number in sorted(self.left):
            if runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        for run in runs:
            yield Piece(self.ticket, replace(self.request, first=run[0], n=len(run)), self.sampling)

    def suspended(self) -> list[Ended]:
        """Return the rest of it as suspended completions without a token."""
        return [(self.ticket, Generation([], [], "suspended", sample=number)) for number in sorted(self.left)]


@dataclass(eq=False)
class Replica:
    """One of the engines, with its open work and pending calls."""

    remote: Remote
    open: dict[int, Piece] = field(default_factory=dict)
    load: int = 0
    """Completions that it has not returned."""
    prompts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Number of open pieces by prompt."""
    sent: list[Future] = field(default_factory=list)
    """Pending answers to `submit`, which only report errors."""
    asked: Future | None = None
    """Pending answer to `collect`."""
    deaths: int = 0
    """Deaths in a row without a completion in between."""
    last_stats: dict[str, float] = field(default_factory=dict)
    """Statistics that it returned last."""

    def take(self, name: int, piece: Piece) -> None:
        """Record a piece as sent."""
        self.open[name] = piece
        self.load += len(piece.left)
        self.prompts[piece.prompt] += 1

    def gave(self, name: int, number: int) -> bool:
        """Record a returned completion; return False if it was not (or no longer) expected."""
        piece = self.open.get(name)
        if piece is None or number not in piece.left:
            return False
        piece.left.discard(number)
        self.load -= 1
        if not piece.left:
            self.release(name)
        return True

    def release(self, name: int) -> None:
        """Remove a piece."""
        piece = self.open.pop(name)
        self.load -= len(piece.left)
        self.prompts[piece.prompt] -= 1
        if not self.prompts[piece.prompt]:
            del self.prompts[piece.prompt]

    def drop(self) -> list[Piece]:
        """Remove and return all open pieces."""
        pieces, self.open, self.load = list(self.open.values()), {}, 0
        self.prompts.clear()
        return pieces
