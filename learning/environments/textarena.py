"""Environment `textarena`: a game of TextArena for one player, or for two with an opponent."""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.lookup import TeacherFunction
from schemas.errors import StepError
from schemas.suggestions import suggest

GLOBAL_RANDOM = threading.Lock()
"""Held while a game uses the global random numbers of Python and NumPy, which all episodes of a process share."""


class Environment:
    """Play a game of TextArena, alone or against an opponent: the game's messages are what the model reads.

    The problems of a stage are made by `starts`, each with a seed for `reset`. Needs `pip install
    'posttrain[environments]'`. (Guertler et al. 2025.)
    """

    def __init__(
        self,
        *,
        id: str,
        kwargs: dict[str, Any] = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
        opponent: TeacherFunction | None = None,
        player: Literal[0, 1] = 0,
    ) -> None:
        """Set the game, `id` as in `textarena.make`, with its `kwargs`.

        A turn without brackets is passed to the game in brackets, as TextArena's own wrapper does. The reward of the
        last turn is the game's. In a game for two the model is `player` 0 or 1, and `opponent` writes the other's
        turns: a teacher, which gets a row whose `prompt` is the game as that player sees it.
        """
        self.id, self.kwargs, self.player = id, kwargs, player
        self.opponent: Any = opponent
        if player and opponent is None:
            raise StepError("env textarena: `player: 1` needs an `opponent` who plays 0")
        Play(self, 0, 0)

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
        return Play(self, number, number).shown

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode from the start that the row names. Raise StepError if it names none."""
        start = json.loads(row["metadata"] or "{}").get("start")
        if not isinstance(start, int):
            raise StepError(f"env textarena: row {row['id']} names no start; make problems with {{use: starts}}")
        return Play(self, start, seed)


class Play:
    """One episode; its random numbers continue those of its reset, whatever other episodes do meanwhile."""

    def __init__(self, environment: Environment, start: int, seed: int) -> None:
        self.game, self.environment, self.player = environment.make(), environment, environment.player
        self.players = 1 if environment.opponent is None else 2
        self.conversation: list[dict[str, str]] = []
        """The game as the opponent sees it."""
        self.rng = np.random.default_rng(seed)
        """Of the opponent's turns after the model's first; those before are part of the start."""
        self.random_state, self.numpy_state = random.Random(start).getstate(), np.random.RandomState(start).get_state()
        try:
            with self._own_random_numbers():
                self.game.reset(num_players=self.players, seed=start)
        except AssertionError as error:
            many = "one player; give an `opponent`" if self.players == 1 else "two players"
            raise StepError(f"env textarena: {environment.id} is no game for {many}: {error}") from error
        except Exception as error:  # a third party's game may raise anything
            problem = f"reset with seed {start}: {type(error).__name__}: {error}"
            raise StepError(f"env textarena: {environment.id}: {problem}") from error
        if self._play_opponent(np.random.default_rng(start)):
            raise StepError(f"env textarena: {environment.id} with seed {start}: it ends before the model's first turn")
        self.shown = self._read_messages()

    def step(self, action: str) -> Outcome:
        """Pass a turn to the game; what goes wrong inside the game ends the episode."""
        state, errors = self.game.state, self.game.state.error_count
        try:
            done = self._pass_turn(action)
            ok = state.error_count <= errors
            if not done and not self._play_opponent(self.rng):
                return Outcome(self._read_messages(), ok=ok)
        except StepError:
            raise
        except Exception as error:  # a third party's game may raise anything; the run continues
            return Outcome(f"error: {error}", done=True, ok=False)
        rewards, info = self.game.close()
        return Outcome(done=True, reward=float(rewards[self.player]), ok=not info[self.player]["invalid_move"])

    def _pass_turn(self, action: str) -> bool:
        """Pass a turn of the current player to the game; return whether the game is over."""
        turn = action if "[" in action and "]" in action else f"[{action.strip()}]"
        with self._own_random_numbers():
            done, _ = self.game.step(turn)
        return done

    def _play_opponent(self, rng: np.random.Generator) -> bool:
        """Let the opponent write turns until it is the model's turn; return whether they ended the game."""
        opponent = self.environment.opponent
        while opponent is not None and self.game.state.current_player_id != self.player:
            self.conversation.append({"role": "user", "content": self._read_messages()})
            row = {"id": self.environment.id, "prompt": list(self.conversation), "answer": None, "metadata": "{}"}
            action = str(opponent(row, rng))
            self.conversation.append({"role": "assistant", "content": action})
            if self._pass_turn(action):
                return True
        return False

    def _read_messages(self) -> str:
        """Return the new messages for the current player, without that player's own turns."""
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
