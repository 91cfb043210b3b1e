"""Episodes that several roles share: what a turn order reads and returns, and the sample of one role."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from learning.samples.sample import Messages, Sample


@dataclass(frozen=True)
class RoleTurn:
    """A turn of a role, as the turn order and scripts see it."""

    role: str
    text: str
    """What it said, without special tokens; of a role with an environment its last message."""
    truncated: bool = False
    """Whether it hit the length limit."""
    observed: tuple[str, ...] = ()
    """What the role's own environment answered before its last message, oldest first: results of its tools."""


@dataclass(frozen=True)
class NextTurn:
    """Who speaks next."""

    role: str | None = None
    """The role; None: the episode is over."""
    message: str = ""
    """What it is shown: a part of its first message, later a message of the user."""
    messages: Messages | None = None
    """The whole context of the turn, which replaces everything that the role has seen; None: its context continues, or
    is what `begins` says."""
    begins: Literal["turn", "context", "sample"] = "turn"
    """What begins with this turn. `turn`: the role's context goes on. `context`: it has forgotten what it has seen, and
    is shown its first message again, with `message`. `sample`: moreover this is another attempt of the role, a sample
    of its own; the attempts of a role in one episode are a group."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What roles have earned since the turn before, added to the reward of their last turn. A role that has not spoken
    has no sample, and earns nothing."""


@dataclass
class RoleSample(Sample):
    """The turns of one role in an episode; those of the other roles are observed as far as it was shown them."""

    role: str = ""
    policy: str = ""
    """Name of the policy that spoke."""
    conversation: int = 0
    """Number of the episode in its iteration: samples of the roles of one episode have the same."""
    request: int = 0
    """Number of its request in the call that sampled it: episodes of one problem have the same."""
    trainable: bool = True
    """Whether the policy is trained on it."""
    places: list[int] = field(default_factory=list)
    """Place, among the turns of all roles, of each of its turns."""
    moments: list[int] = field(default_factory=list)
    """The same for each entry of `turns`: those of one turn, between which its own environment answered, are equal."""


def list_conversations(samples: Sequence[Sample]) -> dict[int, list[RoleSample]]:
    """Return the samples of every episode, by its number."""
    conversations: dict[int, list[RoleSample]] = {}
    for sample in samples:
        if isinstance(sample, RoleSample):
            conversations.setdefault(sample.conversation, []).append(sample)
    return conversations
