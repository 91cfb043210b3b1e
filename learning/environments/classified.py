"""Environment `classified`: another environment whose calls are classified: new, verifying or redundant."""

import re
from typing import Literal

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Episode, Outcome
from schemas.use import EnvUse

NAME = re.compile(r"\s*([A-Za-z_]\w*):")
Worth = Literal["new", "verifying", "redundant"]


class Environment:
    """Play `of`; the kind of a call is its tool and what it was worth, such as `search new` (Fathom-DeepResearch 2025).

    A call is `redundant` if it failed, or if every line of its answer was shown before; `verifying` if a line is new
    and begins or ends with a word that an earlier answer ended with, so that it is another source for it; else `new`.
    A turn that ends the episode has no kind. The reward `search_steps.steered` reads these kinds.
    """

    def __init__(self, *, of: EnvUse) -> None:
        self.inner = build_environment(of, {})

    def begin(self, row: Row, seed: int) -> "Classified":
        """Return an episode of `of`."""
        return Classified(self.inner.begin(row, seed))


class Classified:
    """An episode with the lines that it has shown."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.seen: set[str] = set()
        self.found: set[str] = set()

    def step(self, action: str) -> Outcome:
        """Carry out a turn, and say what it was worth."""
        outcome = self.episode.step(action)
        named = NAME.match(action)
        if outcome.done or named is None:
            return outcome
        kind = f"{named[1]} {self._judge(outcome)}"
        return Outcome(outcome.observation, reward=outcome.reward, seconds=outcome.seconds, ok=outcome.ok, kind=kind)

    def _judge(self, outcome: Outcome) -> Worth:
        lines = [line.strip() for line in outcome.observation.splitlines() if line.strip()]
        fresh = [line for line in lines if line not in self.seen]
        if not outcome.ok or not fresh:
            return "redundant"
        known = any({line.split()[0], line.split()[-1]} & self.found for line in fresh)
        self.seen |= set(fresh)
        self.found |= {line.split()[-1] for line in fresh}
        return "verifying" if known else "new"
