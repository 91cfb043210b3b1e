"""Rewards of plans: all turns of an episode, written down before the first is carried out."""

import json

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from schemas.use import EnvUse


def replayed(rows: list[Row], completions: list[str], *, env: EnvUse, seed: int = 0) -> list[float | None]:
    """Return what the turns of a plan, a JSON list of texts, earn in `env`, played from the start of the row.

    At most `max_turns` of them are played, and none after the end of the episode. A text that is no such list earns 0.
    """
    environment = build_environment(env, {})
    scores: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        episode, earned = environment.begin(row, seed), 0.0
        for turn in parse_plan(text)[: env.max_turns]:
            outcome = episode.step(turn)
            earned += outcome.reward
            if outcome.done:
                break
        scores.append(earned)
    return scores


def parse_plan(text: str) -> list[str]:
    """Return the turns of a plan; none where the text is no JSON list of texts."""
    try:
        turns = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return turns if isinstance(turns, list) and all(isinstance(turn, str) for turn in turns) else []
