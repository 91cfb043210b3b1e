"""Environment `tagged`: another environment, whose turns begin with a tag that says what they are for."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from learning.data.rows import Row
from learning.data.turn_tags import split_tag
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Outcome, SavableEpisode
from learning.environments.replayed import make_savable
from schemas.use import EnvUse

Rule = Literal["always", "new", "changed", "never"]


@dataclass(frozen=True)
class Past:
    """A turn that was played."""

    action: str
    passed: bool
    """Whether it had a tag, so that it reached the other environment."""
    ok: bool
    """Whether that could carry it out."""


class Environment:
    """Play `of` with turns such as `<explore>go north` or `<planning>first the key</planning>open box` (RLVMR 2025).

    `of` gets the action alone. The tag is the kind of the turn, and its rule says what merit it has: `always` 1, `new`
    1 for an action that the episode has not tried before, `changed` 1 for an action other than that of the turn before,
    which `of` could not carry out, `never` 0. A turn without a tag of `rules` is not passed on: the answer
    says which tags there are. Merits are no rewards: the advantage operation `merits` uses them.
    """

    def __init__(
        self,
        *,
        of: EnvUse,
        rules: Annotated[dict[str, Rule], Field(min_length=1)] = {  # noqa: B006 — never written to
            "planning": "always",
            "explore": "new",
            "reflection": "changed",
            "monitor": "never",
        },
    ) -> None:
        self.inner, self.rules = build_environment(of, {}), rules

    def begin(self, row: Row, seed: int) -> "Tagged":
        """Return an episode of `of`."""
        episode = make_savable(self.inner.begin(row, seed))
        return (NamedTagged if isinstance(episode, HasStateName) else Tagged)(self.rules, episode)


class Tagged:
    """An episode with the turns so far."""

    def __init__(self, rules: dict[str, Rule], episode: SavableEpisode) -> None:
        self.rules, self.episode = rules, episode
        self.past: list[Past] = []

    def step(self, action: str) -> Outcome:
        """Carry out the action after the tag, and say what the rule for the tag pays."""
        tag, action = split_tag(action)
        if tag not in self.rules:
            self.past.append(Past(action, passed=False, ok=False))
            return Outcome(f"begin with <{'>, <'.join(self.rules)}>", ok=False)
        merit = float(self._deserves(self.rules[tag], action))
        outcome = self.episode.step(action)
        self.past.append(Past(action, passed=True, ok=outcome.ok))
        values = {name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}
        return Outcome(**{**values, "kind": tag, "merit": merit})

    def _deserves(self, rule: Rule, action: str) -> bool:
        if rule == "new":
            return not any(turn.passed and turn.action == action for turn in self.past)
        if rule == "changed":
            return bool(self.past) and not self.past[-1].ok and self.past[-1].action != action
        return rule == "always"

    def save(self) -> Row:
        """Return the state of the episode and the turns so far."""
        return {"episode": self.episode.save(), "past": [[turn.action, turn.passed, turn.ok] for turn in self.past]}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.episode.restore(saved["episode"])
        self.past = [Past(*turn) for turn in saved["past"]]


class NamedTagged(Tagged):
    """An episode whose environment names its states."""

    @property
    def state_name(self) -> str:
        """Return the name of the present state."""
        assert isinstance(self.episode, HasStateName)
        return self.episode.state_name
