"""Rewards of plans: all turns of an episode, written down before the first is carried out."""

import json
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from schemas.use import EnvUse


def replayed(
    rows: list[Row],
    completions: list[str],
    *,
    env: EnvUse,
    seed: int = 0,
    comment: Annotated[str, Field(min_length=1)] | None = None,
) -> list[float | None]:
    """Return what the turns of a plan, a JSON list of texts, earn in `env`, played from the start of the row.

    At most `max_turns` of them are played, and none after the end of the episode. What follows a `comment` in a turn is
    not played. A text that is no such list earns 0.
    """
    environment = build_environment(env, {})
    scores: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        episode, earned = environment.begin(row, seed), 0.0
        for turn in parse_plan(text)[: env.max_turns]:
            outcome = episode.step(turn if comment is None else turn.partition(comment)[0].strip())
            earned += outcome.reward
            if outcome.done:
                break
        scores.append(earned)
    return scores


def commented(completions: list[str], *, comment: Annotated[str, Field(min_length=1)] = "#") -> list[float | None]:
    """Return the number of turns of a plan that have a comment; `prompt_dag` marks so what was no action."""
    return [float(sum(comment in turn for turn in parse_plan(text))) for text in completions]


def parse_plan(text: str) -> list[str]:
    """Return the turns of a plan; none where the text is no JSON list of texts."""
    try:
        turns = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return turns if isinstance(turns, list) and all(isinstance(turn, str) for turn in turns) else []
