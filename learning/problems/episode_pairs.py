"""Preference pairs from episodes of the same problems, played or from files: better turns, or whole episodes."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from learning.data.dialogues import find_agent_turns, list_messages, read_return
from learning.data.rows import Row, read_rows, write_rows
from schemas.errors import StepError


def pair_episodes(context: Any, *, min_margin: Annotated[float, Field(ge=0)] = 0.0) -> dict[str, float]:
    """Pair turns at which episodes with the same past part: that of the better episodes over that of the worse ones.

    Input `episodes`: conversations of which the metadata have the `rewards`. Output `pairs`: at every past after which
    several different turns of the assistant were taken, the one whose episodes have the highest mean return is chosen,
    and the one with the lowest is rejected, if both differ by more than `min_margin`, which is the pair's `margin`. For
    two episodes of a problem that is one pair, at the turn where they part. Metrics: `pairs`, and `parted`, the number
    of pasts with several turns. Raise StepError if there is no pair.
    """
    returns: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    pasts: dict[str, tuple[Row, list[Row]]] = {}
    rows = read_rows(context.input("episodes"), "chat")
    for row in rows:
        messages, total = list_messages(row), read_return(row)
        for place in find_agent_turns(messages):
            past = json.dumps(messages[:place])
            pasts.setdefault(past, (row, messages[:place]))
            returns[past][messages[place]["content"]].append(total)
    parted = {past: _average(taken) for past, taken in returns.items() if len(taken) > 1}
    pairs = [_make_pair(*pasts[past], means) for past, means in parted.items()]
    pairs = [pair for pair in pairs if pair["margin"] > min_margin]
    if not pairs:
        raise StepError(
            f"pair_episodes: of {len(rows)} episodes none part after the same past with returns that differ by more "
            f"than {min_margin:g}; give several episodes of each problem, with different rewards"
        )
    write_rows(context.output("pairs"), "preference_pairs", pairs)
    return {"pairs": len(pairs), "parted": len(parted)}


def _average(taken: dict[str, list[float]]) -> dict[str, float]:
    return {text: sum(totals) / len(totals) for text, totals in taken.items()}


def _make_pair(row: Row, past: list[Row], means: dict[str, float]) -> Row:
    """Return the best turn over the worst; of equals the one that came first."""
    best, worst = max(means, key=lambda text: means[text]), min(means, key=lambda text: means[text])
    chosen, rejected = ([{"role": "assistant", "content": text}] for text in (best, worst))
    turn = len(find_agent_turns(past)) + 1
    return row | {
        "id": f"{row['id']}.{turn}",
        "prompt": past,
        "chosen": chosen,
        "rejected": rejected,
        "margin": means[best] - means[worst],
    }


def pair_whole_episodes(context: Any, *, min_margin: Annotated[float, Field(ge=0)] = 0.0) -> dict[str, float]:
    """Pair the best episode of each problem with its worst one; each side has all turns after the problem.

    Input `episodes`: conversations of which the metadata have the `rewards`; the problem is what stands before the
    assistant's first turn. Output `pairs`: the episode with the highest return is chosen and the one with the lowest is
    rejected, of equals the first, if they differ by more than `min_margin`; the difference is the pair's `margin`. What
    stands after an episode's last turn of the assistant is left out. Metrics: `pairs`, and `problems`. Raise StepError
    if there is no pair.
    """
    played: dict[str, list[_Episode]] = defaultdict(list)
    for row in read_rows(context.input("episodes"), "chat"):
        episode = _split_episode(row)
        played[json.dumps([episode.problem, row.get("tools")])].append(episode)
    pairs: list[Row] = []
    for episodes in played.values():
        best, worst = max(episodes, key=_get_total), min(episodes, key=_get_total)
        margin = best.total - worst.total
        if margin > min_margin:
            sides = {"chosen": best.turns, "rejected": worst.turns}
            pairs.append(best.row | {"prompt": best.problem, **sides, "margin": margin})
    if not pairs:
        raise StepError(
            f"pair_whole_episodes: of {len(played)} problems none has episodes with returns that differ by more than "
            f"{min_margin:g}; give several episodes of each problem, with different rewards"
        )
    write_rows(context.output("pairs"), "preference_pairs", pairs)
    return {"pairs": len(pairs), "problems": len(played)}


@dataclass(frozen=True)
class _Episode:
    """A row, its messages before and from the assistant's first turn to its last, and its return."""

    row: Row
    problem: list[Row]
    turns: list[Row]
    total: float


def _split_episode(row: Row) -> _Episode:
    messages = [*row["prompt"], *row["completion"]]
    places = find_agent_turns(messages)
    if not places:
        raise StepError(f"pair_whole_episodes: row {row['id']} has no turn of the assistant; drop it")
    return _Episode(row, messages[: places[0]], messages[places[0] : places[-1] + 1], read_return(row))


def _get_total(episode: _Episode) -> float:
    return episode.total
