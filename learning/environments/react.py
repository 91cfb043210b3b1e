"""Environment `react`: another environment, whose turns are thoughts and actions on lines of their own."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.data.thought_lines import KINDS, Style, split_lines
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Outcome, SavableEpisode
from learning.environments.replayed import make_savable
from schemas.use import EnvUse


class Environment:
    """Play `of` with turns such as `Thought: first the key` and, on the next line, `Action: open box` (ReAct 2022).

    `of` gets what its actions say and answers as it does; a thought alone never reaches it, and its answer is empty. An
    `Answer: …` is passed on as `finish`. A turn is read up to its first action or answer. `style: act_only` knows no
    thoughts, `reason_only` no actions; other lines are not passed on, and the answer says what a line may begin with.
    """

    def __init__(
        self,
        *,
        of: EnvUse,
        style: Style = "react",
        finish: Annotated[str, Field(pattern=r"\{answer\}")] = "finish {answer}",
    ) -> None:
        self.inner, self.style, self.finish = build_environment(of, {}), style, finish

    def begin(self, row: Row, seed: int) -> "Reasoned":
        """Return an episode of `of`."""
        episode = make_savable(self.inner.begin(row, seed))
        return (NamedReasoned if isinstance(episode, HasStateName) else Reasoned)(self, episode)


class Reasoned:
    """An episode of another environment."""

    def __init__(self, rules: Environment, episode: SavableEpisode) -> None:
        self.rules, self.episode = rules, episode

    def step(self, action: str) -> Outcome:
        """Pass on the first action or answer of a turn."""
        known = KINDS[self.rules.style]
        for kind, text in split_lines(action):
            if kind not in known:
                return Outcome(f"begin a line with {' or '.join(f'{name}:' for name in known)}", ok=False)
            if kind == "Action":
                return self.episode.step(text)
            if kind == "Answer":
                return self.episode.step(self.rules.finish.replace("{answer}", text))
        return Outcome()

    def save(self) -> Row:
        """Return the state of the episode."""
        return self.episode.save()

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.episode.restore(saved)


class NamedReasoned(Reasoned):
    """An episode whose environment names its states."""

    @property
    def state_name(self) -> str:
        """Return the name of the present state."""
        assert isinstance(self.episode, HasStateName)
        return self.episode.state_name
