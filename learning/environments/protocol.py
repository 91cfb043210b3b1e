"""Protocol of environments: the text of a turn in, its outcome out.

An environment is one file in this package with one class `Environment`, called as `Environment(**options)`; the
keyword-only parameters of its constructor are options of the recipe. It holds no state of an episode, so that one
object serves many episodes at once.

An episode depends only on its row, its seed and the turns so far: an interrupted one is restarted and receives the same
turns. Its steps may be slow; they run in threads, never two of one episode at a time.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from learning.data.rows import Row


@dataclass(frozen=True)
class Outcome:
    """Result of a turn."""

    observation: str = ""
    """Next message for the model, if the episode continues."""
    done: bool = False
    """Whether the episode has ended."""
    reward: float = 0.0
    """Reward of this turn alone."""
    seconds: float | None = None
    """Duration on the environment's own clock; None: the real duration."""
    ok: bool = True
    """Whether the turn was understood and carried out."""
    kind: str = ""
    """What kind of turn it was, if the environment tells kinds apart; turns of a kind are compared with each other."""
    merit: float = 0.0
    """What a rule for its kind pays for the turn; not a part of the reward (advantage operation `merits`)."""


class Episode(Protocol):
    """One running problem."""

    def step(self, action: str) -> Outcome:
        """Carry out a turn of the model: its text, without special tokens."""
        ...


@runtime_checkable
class HasStateName(Protocol):
    """An episode that names its states. Without it the state is the answer that the model saw last."""

    @property
    def state_name(self) -> str:
        """Return the name of the present state: actions of a group that were taken in equal states are compared."""
        ...


@runtime_checkable
class Savable(Protocol):
    """An episode whose state can be saved, and restored in another episode of the same row."""

    def save(self) -> Row:
        """Return the state as JSON."""
        ...

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned, as if the turns that led there had been taken here."""
        ...


class SavableEpisode(Episode, Savable, Protocol):
    """An episode that can be saved and restored."""


@runtime_checkable
class Divisible(Protocol):
    """An environment whose problems can be divided into parts that are solved one after the other."""

    def divide(self, row: Row, plan: str) -> list[Row]:
        """Return the problems of the parts that a plan names; none for a plan that cannot be used.

        The turns that solve the parts, one part after the other, solve the problem of the row.
        """
        ...


class EnvironmentProtocol(Protocol):
    """Begins episodes."""

    def begin(self, row: Row, seed: int) -> Episode:
        """Return an episode of a problem; all of its randomness comes from `seed`.

        Raise StepError if the row lacks data that the environment needs.
        """
        ...


@dataclass(frozen=True)
class PastTurn:
    """A turn of the model as a context policy sees it."""

    text: str
    """What the model wrote, without special tokens."""
    observation: str = ""
    """The environment's answer; empty for a memory."""
    is_memory: bool = False
    """Whether the model wrote a memory instead of an action."""


@dataclass(frozen=True)
class NextContext:
    """What the model sees at its next turn."""

    messages: list[Row] | None = None
    """The whole context, which replaces everything before; None: the context so far continues."""
    message: str | None = None
    """The user message that continues the context so far; None: the environment's last answer."""
    asks: Literal["action", "memory"] = "action"
    """What the model writes: an action for the environment, or a memory, after which the policy is asked again."""
    ends: bool = False
    """Whether the episode ends here without another turn, as truncated."""
