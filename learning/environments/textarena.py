"""Environment `textarena`: a game of TextArena for one player."""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from schemas.errors import StepError
from schemas.suggestions import suggest

GLOBAL_RANDOM = threading.Lock()
"""Held while a game uses the global random numbers of Python and NumPy, which all episodes of a process share."""


class Environment:
    """Play a game of TextArena for one player: the game's messages are what the model reads.

    The problems of a stage are made by `starts`, each with a seed for `reset`. Needs `pip install
    'posttrain[environments]'`. (Guertler et al. 2025.)
    """

    def __init__(
        self,
        *,
        id: str,
        kwargs: dict[str, Any] = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
    ) -> None:
        """Set the game, `id` as in `textarena.make`, with its `kwargs`.

        A turn without brackets is passed to the game in brackets, as TextArena's own wrapper does. The reward of the
        last turn is the game's.
        """
        self.id, self.kwargs = id, kwargs
        Play(self, 0)

    def make(self) -> Any:
        """Return a new game without wrappers. Raise StepError if TextArena or the game is missing."""
        try:
            import textarena
            from textarena.envs.registration import ENV_REGISTRY
        except ImportError as error:
            raise StepError(f"env textarena: {error}: pip install 'posttrain[environments]'") from error
        if self.id not in ENV_REGISTRY:
            raise StepError(f"env textarena: no game `{self.id}`; {suggest(self.id, list(ENV_REGISTRY), 'games')}")
        try:
            game: Any = textarena.make(self.id, **self.kwargs)
        except Exception as error:  # a third party's game may raise anything
            raise StepError(f"env textarena: {self.id} cannot be made: {type(error).__name__}: {error}") from error
        while isinstance(game, textarena.Wrapper):
            game = game.env
        return game

    def show_start(self, number: int) -> str:
        """Return what is seen after a reset with this seed."""
        return Play(self, number).shown

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode from the start that the row names. Raise StepError if it names none."""
        start = json.loads(row["metadata"] or "{}").get("start")
        if not isinstance(start, int):
            raise StepError(f"env textarena: row {row['id']} names no start; make problems with {{use: starts}}")
        return Play(self, start)


class Play:
    """One episode; its random numbers continue those of its reset, whatever other episodes do meanwhile."""

    def __init__(self, environment: Environment, start: int) -> None:
        self.game = environment.make()
        self.random_state, self.numpy_state = random.Random(start).getstate(), np.random.RandomState(start).get_state()
        try:
            with self._own_random_numbers():
                self.game.reset(num_players=1, seed=start)
        except AssertionError as error:
            raise StepError(f"env textarena: {environment.id} is no game for one player: {error}") from error
        except Exception as error:  # a third party's game may raise anything
            problem = f"reset with seed {start}: {type(error).__name__}: {error}"
            raise StepError(f"env textarena: {environment.id}: {problem}") from error
        self.shown = self._read_messages()

    def step(self, action: str) -> Outcome:
        """Pass a turn to the game; what goes wrong inside the game ends the episode."""
        turn = action if "[" in action and "]" in action else f"[{action.strip()}]"
        state, errors = self.game.state, self.game.state.error_count
        try:
            with self._own_random_numbers():
                done, _ = self.game.step(turn)
        except Exception as error:  # a third party's game may raise anything; the run continues
            return Outcome(f"error: {error}", done=True, ok=False)
        if done:
            rewards, info = self.game.close()
            return Outcome(done=True, reward=float(rewards[0]), ok=not info[0]["invalid_move"])
        return Outcome(self._read_messages(), ok=state.error_count <= errors)

    def _read_messages(self) -> str:
        """Return the game's new messages, without the turns of the player."""
        player, messages = self.game.get_observation()
        return "\n".join(text.strip() for sender, text, _ in messages if sender != player)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        with GLOBAL_RANDOM:
            others, numpy_others = random.getstate(), np.random.get_state()  # noqa: NPY002 (a game may use them)
            random.setstate(self.random_state)
            np.random.set_state(self.numpy_state)  # noqa: NPY002
            try:
                yield
            finally:
                self.random_state, self.numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
                random.setstate(others)
                np.random.set_state(numpy_others)  # noqa: NPY002
