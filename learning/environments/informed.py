"""Environment `informed`: another environment, whose answers end with what the agent knows (Chhikara et al. 2023)."""

from dataclasses import replace

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Outcome, SavableEpisode
from learning.environments.replayed import make_savable
from learning.text_game.knowledge import Kind, Knowledge, write_facts
from schemas.use import EnvUse


class Environment:
    """Play `of`; every answer ends with the actions that were correct so far, and what visible things are good for.

    An action is correct if `of` paid for it. `affordances` is a table of things and verbs, `{door: [open, go]}`; a
    thing is visible if its name is a word of the answer, or if the pattern of `shown_as` is found in it. `knowledge`
    chooses `memory`, `affordance`, `both` or `none`. Rewards are those of `of`.
    """

    def __init__(
        self,
        *,
        of: EnvUse,
        knowledge: Kind = "both",
        affordances: dict[str, list[str]] = {},  # noqa: B006
        shown_as: dict[str, str] = {},  # noqa: B006
    ) -> None:
        self.inner, self.knowledge = build_environment(of, {}), Knowledge(knowledge, affordances, shown_as)

    def begin(self, row: Row, seed: int) -> "Informed":
        """Return an episode of `of`, with an empty memory."""
        return Informed(self.knowledge, make_savable(self.inner.begin(row, seed)))


class Informed:
    """An episode of `of`, and what was done in it."""

    def __init__(self, knowledge: Knowledge, episode: SavableEpisode) -> None:
        self.knowledge, self.episode = knowledge, episode
        self.taken: list[tuple[str, float]] = []

    def step(self, action: str) -> Outcome:
        """Carry out an action, and add the facts to the answer."""
        outcome = self.episode.step(action)
        self.taken.append((" ".join(action.split()), outcome.reward))
        facts = write_facts(self.knowledge.list_facts(self.taken, outcome.observation))
        return replace(outcome, observation=f"{outcome.observation}\n{facts}") if facts else outcome

    def save(self) -> Row:
        """Return the state of the episode of `of`, and the actions."""
        return {"of": self.episode.save(), "taken": [list(one) for one in self.taken]}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.episode.restore(saved["of"])
        self.taken = [(str(action), float(reward)) for action, reward in saved["taken"]]
