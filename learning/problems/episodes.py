"""Whole episodes of a teacher in an environment, with the rewards of their turns: data to learn from offline."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_metadata
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import EnvironmentProtocol
from learning.lookup import Inner, ProblemsFunction, TeacherFunction
from schemas.errors import StepError
from schemas.use import EnvUse


@dataclass(frozen=True)
class PlayedTurn:
    """A turn of the player, what the environment answered, and what the turn earned."""

    text: str
    answer: str
    reward: float


def episodes(
    *,
    of: ProblemsFunction,
    by: TeacherFunction,
    env: EnvUse,
    repeats: Annotated[int, Field(ge=1)] = 1,
    seed: int = 0,
) -> list[Row]:
    """Play the problems of another generator with the teacher `by`, `repeats` times each, and return whole episodes.

    A row is an episode: its prompt has everything before the last turn, which is its `answer`, so that the teacher
    `answer` writes it as the completion. The metadata have the `rewards` of all turns, and the problem's answer as
    `goal`. An episode that does not end within `max_turns` ends there. Raise StepError if the environment refers to a
    stage's output.
    """
    player: Inner = by
    try:
        environment = build_environment(env, {})
    except KeyError as port:
        raise StepError(f"problems episodes: {port} refers to a stage's output; give options only") from None
    made = []
    for place, row in enumerate(of()):
        for k in range(repeats):
            rng = np.random.default_rng([seed, place, k])
            own_seed = seed + place * repeats + k
            turns = list(_play(environment, row, own_seed, env.max_turns, player, rng))
            made.append(make_episode(row, f"{row['id']}.{k}", turns))
    return made


def _play(
    environment: EnvironmentProtocol, row: Row, seed: int, most: int, player: Inner, rng: np.random.Generator
) -> Iterator[PlayedTurn]:
    """Yield the turns of an episode, at most `most`."""
    episode, messages = environment.begin(row, seed), list(row["prompt"])
    for _ in range(most):
        text = str(player.bound(row | {"prompt": messages}, rng))
        outcome = episode.step(text)
        yield PlayedTurn(text, outcome.observation, outcome.reward)
        if outcome.done:
            return
        messages = [*messages, *make_exchange(text, outcome.observation)]


def make_exchange(text: str, answer: str) -> list[Row]:
    """Return a turn and its answer as messages."""
    return [{"role": "assistant", "content": text}, {"role": "user", "content": answer}]


def make_episode(row: Row, name: str, turns: Sequence[PlayedTurn], **notes: object) -> Row:
    """Return a problem with the turns of an episode as a row of a whole episode; `notes` go to its metadata."""
    before = [message for turn in turns[:-1] for message in make_exchange(turn.text, turn.answer)]
    recorded = {"rewards": [turn.reward for turn in turns], "goal": row["answer"], **notes}
    metadata = json.dumps(read_metadata(row) | recorded)
    return row | {"id": name, "prompt": [*row["prompt"], *before], "answer": turns[-1].text, "metadata": metadata}
