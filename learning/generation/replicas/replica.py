"""One replica of an engine as its client sees it: what it was given and has not given back."""

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
    """Siblings that go to one replica: `left` are the streams of a request whose completions have not come back."""

    ticket: int
    request: Request
    sampling: Sampling
    left: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = self.left or set(range(self.request.first, self.request.first + self.request.n))

    @property
    def prompt(self) -> tuple[int, ...]:
        """Of all its completions."""
        return tuple(self.request.prompt_ids)

    def again(self) -> Iterator["Piece"]:
        """What is left of it, as pieces with consecutive streams."""
        runs: list[list[int]] = []
        for number in sorted(self.left):
            if runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        for run in runs:
            yield Piece(self.ticket, replace(self.request, first=run[0], n=len(run)), self.sampling)

    def suspended(self) -> list[Ended]:
        """What is left of it, as completions without a token."""
        return [(self.ticket, Generation([], [], "suspended", sample=number)) for number in sorted(self.left)]


@dataclass(eq=False)
class Replica:
    """One of the engines: what it has been given, and what it has been asked."""

    remote: Remote
    open: dict[int, Piece] = field(default_factory=dict)
    load: int = 0
    """Completions that it owes."""
    prompts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Those that it works on."""
    sent: list[Future] = field(default_factory=list)
    """Answers to what it was given, which only say whether something was wrong."""
    asked: Future | None = None
    """The completions that it was last asked for."""
    deaths: int = 0
    """In a row, without a completion in between."""
    told: dict[str, float] = field(default_factory=dict)
    """What it last said of itself."""

    def take(self, name: int, piece: Piece) -> None:
        """Owe a piece."""
        self.open[name] = piece
        self.load += len(piece.left)
        self.prompts[piece.prompt] += 1

    def gave(self, name: int, number: int) -> bool:
        """A completion came back; False when it is not owed (any more)."""
        piece = self.open.get(name)
        if piece is None or number not in piece.left:
            return False
        piece.left.discard(number)
        self.load -= 1
        if not piece.left:
            self.release(name)
        return True

    def release(self, name: int) -> None:
        """Owe a piece no longer."""
        piece = self.open.pop(name)
        self.load -= len(piece.left)
        self.prompts[piece.prompt] -= 1
        if not self.prompts[piece.prompt]:
            del self.prompts[piece.prompt]

    def drop(self) -> list[Piece]:
        """Owe nothing; what it owed."""
        owed, self.open, self.load = list(self.open.values()), {}, 0
        self.prompts.clear()
        return owed
