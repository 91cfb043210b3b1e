"""Environment `gymnasium`: an environment of Gymnasium, shown and played as text."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.environments.time_limit import StepTimeout, call_within
from schemas.errors import StepError

HIGHLIGHT = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)
"""A highlighted piece of a screen, such as the agent's place."""
SCREEN = "{screen}"


class Environment:
    """Play an environment of Gymnasium: a turn names an action, the answer shows the observation.

    The problems of a stage are made by `starts`, each with a seed for `reset`. Needs `pip install
    'posttrain[environments]'`. (Towers et al. 2024.)
    """

    def __init__(
        self,
        *,
        id: str,
        actions: dict[str, int] = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
        template: str = "{observation}",
        kwargs: dict[str, Any] = {},  # noqa: B006
        seconds: Annotated[float, Field(gt=0)] = 10.0,
    ) -> None:
        """Set the environment, `id` as in `gymnasium.make`, with its `kwargs`, and how it is shown and played.

        `actions` maps words to numbers of actions; the last such word of a turn counts. Without it turns are passed as
        they are. `template` shows `{observation}`, `{reward}` of the turn and `{screen}`, the environment's picture in
        characters with highlights in brackets. A step or reset that takes more than `seconds` ends the episode.
        """
        self.id, self.template, self.kwargs, self.seconds = id, template, kwargs, seconds
        self.actions = {word.casefold(): number for word, number in actions.items()}
        words = sorted(map(re.escape, self.actions), key=len, reverse=True)
        self.pattern = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)") if words else None
        world = self.make()
        space: Any = world.action_space
        world.close()
        if not actions and type(space).__name__ != "Text":
            raise StepError(f"env gymnasium: {id} takes {space}: give `actions`, a map from words to actions")
        if wrong := [word for word, number in actions.items() if not space.contains(number)]:
            raise StepError(f"env gymnasium: {id} takes {space}, not {actions[wrong[0]]} (action `{wrong[0]}`)")

    def make(self) -> Any:
        """Return a new world. Raise StepError if Gymnasium or the environment is missing."""
        try:
            import gymnasium
        except ImportError as error:
            raise StepError(f"env gymnasium: {error}: pip install 'posttrain[environments]'") from error
        options = {"render_mode": "ansi"} if SCREEN in self.template else {}
        try:
            return gymnasium.make(self.id, **options, **self.kwargs)
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            raise StepError(f"env gymnasium: {self.id} cannot be made: {type(error).__name__}: {error}") from error

    def show_start(self, number: int) -> str:
        """Return what is seen after a reset with this seed."""
        return Play(self, number).shown

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode from the start that the row names. Raise StepError if it names none."""
        start = json.loads(row["metadata"] or "{}").get("start")
        if not isinstance(start, int):
            raise StepError(f"env gymnasium: row {row['id']} names no start; make problems with {{use: starts}}")
        return Play(self, start)

    def find_action(self, turn: str) -> int | str | None:
        """Return the action that a turn names last; None if it names none."""
        if self.pattern is None:
            return turn
        matches = self.pattern.findall(turn.casefold())
        return self.actions[matches[-1]] if matches else None


class Play:
    """One episode."""

    def __init__(self, environment: Environment, start: int) -> None:
        self.environment, self.world = environment, environment.make()
        try:
            observation, _ = call_within(environment.seconds, lambda: self.world.reset(seed=start))
            self.shown = self._show(observation, 0.0)
        except StepTimeout as error:
            raise StepError(f"env gymnasium: reset of {environment.id} with seed {start}: {error}") from error

    def step(self, action: str) -> Outcome:
        """Carry out the action that the turn names; what goes wrong in the environment ends the episode."""
        chosen = self.environment.find_action(action)
        if chosen is None:
            return Outcome(f"write one of: {', '.join(self.environment.actions)}", ok=False)
        try:
            result = call_within(self.environment.seconds, lambda: self._take(chosen))
        except StepError:
            raise
        except Exception as error:  # a third party's environment may raise anything; the run continues
            return Outcome(f"error: {error}", done=True, ok=False)
        text, reward, done = result
        return Outcome(text, done=done, reward=reward)

    def _take(self, action: int | str) -> tuple[str, float, bool]:
        observation, reward, terminated, truncated, _ = self.world.step(action)
        if terminated or truncated:
            self.world.close()
            return "", float(reward), True
        return self._show(observation, float(reward)), float(reward), False

    def _show(self, observation: object, reward: float) -> str:
        values: Mapping[str, object] = {"observation": observation, "reward": f"{reward:g}"}
        text = self.environment.template
        if SCREEN in text:
            values = {**values, "screen": HIGHLIGHT.sub(r"[\1]", str(self.world.render())).strip()}
        pieces = re.split(r"\{(observation|reward|screen)\}", text)
        return "".join(str(values[piece]) if place % 2 else piece for place, piece in enumerate(pieces))
