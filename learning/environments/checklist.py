"""Environment `checklist`: another environment, and rewards for turns that meet the items of a list, with evidence.

A problem's metadata has the list: `{"checklist": [{"item": "asks for the date", "evidence": ["when", "which day"]}]}`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from learning.data.rows import Row, read_metadata
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Outcome, SavableEpisode
from learning.environments.replayed import make_savable
from learning.lookup import Bound, RewardFunction
from schemas.base import Schema
from schemas.errors import StepError
from schemas.use import EnvUse


@dataclass(frozen=True)
class Item:
    """What one turn of an episode should do."""

    text: str
    evidence: tuple[str, ...]
    """Texts, in lower case, one of which must be in the turn; empty: the judge alone decides."""
    share: float
    """Its part of the reward of the list."""
    focus: Literal["turn", "answer"] = "turn"
    """What has to contain the evidence: the turn, or the environment's answer to it."""


class Environment:
    """Play `of`; a turn that meets an open item of the problem's checklist earns its share of `weight` in addition.

    A turn meets an item if it contains one of the item's `evidence` texts, whatever their case, and, with a `judge`, if
    that reward scores the turn at least `at_least` with the item as its prompt. An item with `focus: answer` is about
    what `of` answers, such as the result of a tool, in place of the turn; without an answer it is not met. Each item is
    met once, and none by a turn that `of` could not carry out. Items have equal shares unless they have a `weight`.
    `field` is the name of the list in the metadata.
    """

    def __init__(
        self,
        *,
        of: EnvUse,
        weight: float = 1.0,
        judge: RewardFunction | None = None,
        at_least: float = 0.5,
        field: str = "checklist",
    ) -> None:
        self.inner, self.weight, self.at_least = build_environment(of, {}), weight, at_least
        self.judge: Bound | None = judge  # pyright: ignore[reportAttributeAccessIssue] — bound like all options
        self.field = field

    def begin(self, row: Row, seed: int) -> "Listed":
        """Return an episode of `of`. Raise StepError for a row without a checklist."""
        items = read_items(row, self.field, judged=self.judge is not None)
        episode = make_savable(self.inner.begin(row, seed))
        return (NamedListed if isinstance(episode, HasStateName) else Listed)(self, row, episode, items)

    def accepts(self, row: Row, item: Item, turn: str, answer: str) -> bool:
        """Return whether a turn with its answer meets an item."""
        judged = turn if item.focus == "turn" else answer
        text = judged.lower()
        if not text.strip() and item.focus == "answer":
            return False
        if item.evidence and not any(evidence in text for evidence in item.evidence):
            return False
        if self.judge is None:
            return True
        asked = row | {"prompt": [{"role": "user", "content": item.text}]}
        (score,) = self.judge.ask(0, {"rows": [asked], "completions": [judged], "step": 0})
        return score is not None and score >= self.at_least


class Listed:
    """An episode with the items that no turn has met yet."""

    def __init__(self, world: Environment, row: Row, episode: SavableEpisode, items: tuple[Item, ...]) -> None:
        self.world, self.row, self.episode, self.items = world, row, episode, items
        self.open = list(range(len(items)))

    def step(self, action: str) -> Outcome:
        """Carry out a turn, and add what it earns for items."""
        outcome = self.episode.step(action)
        if not outcome.ok:
            return outcome
        answer = outcome.observation
        met = [number for number in self.open if self.world.accepts(self.row, self.items[number], action, answer)]
        self.open = [number for number in self.open if number not in met]
        earned = self.world.weight * sum(self.items[number].share for number in met)
        values = {name: getattr(outcome, name) for name in Outcome.__dataclass_fields__}
        return Outcome(**{**values, "reward": outcome.reward + earned})

    def save(self) -> Row:
        """Return the state of the episode and the open items."""
        return {"episode": self.episode.save(), "open": self.open}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.episode.restore(saved["episode"])
        self.open = list(saved["open"])


class NamedListed(Listed):
    """An episode whose environment names its states."""

    @property
    def state_name(self) -> str:
        """Return the name of the present state."""
        assert isinstance(self.episode, HasStateName)
        return self.episode.state_name


class WrittenItem(Schema):
    """An item as a row's metadata has it."""

    item: str
    evidence: list[Annotated[str, Field(min_length=1)]] = []
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    focus: Literal["turn", "answer"] = "turn"


def read_items(row: Row, field: str, *, judged: bool) -> tuple[Item, ...]:
    """Return the checklist of a row. Raise StepError if it has none that can be used."""
    written = read_metadata(row).get(field)
    try:
        items = [WrittenItem.model_validate(entry) for entry in (written if isinstance(written, list) else [])]
    except ValidationError as error:
        raise StepError(f"env checklist: row {row.get('id')}: its `{field}`: {error}") from error
    if not items or not (judged or all(item.evidence for item in items)):
        raise StepError(
            f"env checklist: row {row.get('id')}: its metadata needs a `{field}`, a list of items such as "
            '{"item": "asks for the date", "evidence": ["when"]}; `evidence` may be empty with a `judge`'
        )
    total = sum(item.weight for item in items)
    return tuple(Item(i.item, tuple(e.lower() for e in i.evidence), i.weight / total, i.focus) for i in items)
