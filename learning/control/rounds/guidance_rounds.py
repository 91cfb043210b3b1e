"""Rounds in which an adapter, a small language model, tells a frozen one about an agent, whose advice guides the agent.

RLAdapter (Zhang and Lu 2023): the adapter is trained on what led to advice that the agent followed. A situation is what
`tell` says of an observation. Shapes: T steps, O numbers of a world's observation, E of the guidance after these.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.control.stepping.transitions import Transitions, read_transitions
from learning.control.worlds.guidance import FILE, Size, TellFunction, embed_texts, read_guidance
from learning.data.rows import Row, read_rows, write_rows
from schemas.errors import StepError

Count = Annotated[int, Field(ge=1)]
LONGEST = 200
"""Characters of a model's text that are read."""


def read_text(row: Row) -> str:
    """Return the beginning of a completion's last message, in one line."""
    return " ".join(str(row["completion"][-1]["content"])[:LONGEST].split())


def make_prompt(text: str, **notes: Any) -> Row:
    """Return a prompt of one message with notes in its metadata."""
    return {
        "id": hashlib.sha256(f"{text} {json.dumps(notes)}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": None,
        "family": "guidance",
        "metadata": json.dumps(notes),
    }


def tell_situations(played: Transitions, tell: TellFunction, size: int) -> tuple[list[str], list[str]]:
    """Return the words for each step's observation, and for what it led to (T each), without the guidance."""
    if played.spaces.observations <= size:
        raise StepError(
            f"guidance: observations of {played.spaces.observations} numbers do not end with {size} of guidance; "
            "collect in a world `guided` of this `size`"
        )
    before, after = (rows[:, :-size] for rows in (played.observation, played.next_observation))
    return tell(observation_NO=before), tell(observation_NO=after)


def begin_scores(context: Any) -> dict[str, float]:
    """Write that nothing was followed yet: no rows (`chat`)."""
    write_rows(context.output("lessons"), "chat", [])
    return {"lessons": 0}


def ask_adapter(context: Any, *, tell: TellFunction, size: Size = 32, count: Count = 24) -> dict[str, float]:
    """Write prompts for the adapter: the `count` most frequent situations of the input `played`, and the follow score.

    The score is the situation's mean in the input `followed`, rows of the round before; 0 where there is none.
    """
    described, _ = tell_situations(read_transitions(context.input("played")), tell, size)
    scores: dict[str, list[float]] = defaultdict(list)
    for row in read_rows(context.input("followed"), "chat"):
        notes = json.loads(row["metadata"])
        scores[notes["situation"]].append(notes["score"])
    situations = [situation for situation, _ in Counter(described).most_common(count)]
    rows = []
    for situation in situations:
        followed = float(np.mean(scores[situation])) if scores[situation] else 0.0
        rows.append(make_prompt(f"has {situation}. followed {followed:.1f}", situation=situation))
    write_rows(context.output("prompts"), "prompts", rows)
    return {"situations": len(rows)}


def ask_model(context: Any) -> dict[str, float]:
    """Write prompts for the frozen model: each situation with what the adapter says of it, the input `advice`."""
    rows = []
    for row in read_rows(context.input("advice"), "chat"):
        situation, advice = json.loads(row["metadata"])["situation"], read_text(row)
        asked = row["prompt"][-1]["content"]
        rows.append(make_prompt(f"has {situation}. {advice}", situation=situation, advice=advice, asked=asked))
    # The adapter may say the same several times; the model is asked once.
    rows = list({row["id"]: row for row in rows}.values())
    write_rows(context.output("prompts"), "prompts", rows)
    return {"prompts": len(rows)}


def keep_guidance(context: Any) -> dict[str, float]:
    """Write what the frozen model answers, the input `answers`, as guidance of each situation, several alternatives."""
    table: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in read_rows(context.input("answers"), "chat"):
        notes = json.loads(row["metadata"])
        one = {"guidance": read_text(row), "advice": notes["advice"], "asked": notes["asked"]}
        if one not in table[notes["situation"]]:
            table[notes["situation"]].append(one)
    (context.output("result") / FILE).write_text(json.dumps(table, indent=1) + "\n")
    return {"situations": len(table), "texts": sum(len(ways) for ways in table.values())}


def list_changes(situation: str, following: Sequence[str]) -> str:
    """Return what happened after a situation in words: those of later situations that it lacks, each once."""
    had = set(situation.split())
    return " ".join(dict.fromkeys(word for words in following for word in words.split() if word not in had))


def measure_following(guidance: Sequence[str], trajectory: Sequence[str], size: int) -> np.ndarray:
    """Return the cosine of guidance and what happened (N,); 0 where nothing did."""
    return (embed_texts(guidance, size) * embed_texts(trajectory, size)).sum(1)


def score_following(context: Any, *, tell: TellFunction, size: Size = 32, horizon: Count = 8) -> dict[str, float]:
    """Write the adapter's lessons (`chat`), each with the mean `score` of how its guidance was followed.

    Inputs are `guidance` and `played`, steps in its world. What happened is what the `horizon` next situations of the
    episode name that the present one does not. Guidance that was never shown has no row.
    """
    played, table = read_transitions(context.input("played")), read_guidance(context.input("guidance"))
    described, led = tell_situations(played, tell, size)
    shown_TE = played.observation[:, -size:]
    lasts = np.searchsorted(played.episode, played.episode, side="right")
    scores: dict[tuple[str, int], list[float]] = defaultdict(list)
    for situation, ways in table.items():
        places = [step for step, one in enumerate(described) if one == situation]
        happened = [list_changes(situation, led[step : min(step + horizon, lasts[step])]) for step in places]
        texts = [one["guidance"] for one in ways]
        for number, embedded_E in enumerate(embed_texts(texts, size)):
            seen = [n for n, step in enumerate(places) if np.array_equal(shown_TE[step], embedded_E)]
            some = [happened[n] for n in seen]
            scores[situation, number] += measure_following([texts[number]] * len(some), some, size).tolist()
    rows = []
    for (situation, number), values in scores.items():
        one = table[situation][number]
        if values:
            notes = {"situation": situation, "guidance": one["guidance"], "score": float(np.mean(values))}
            answer = [{"role": "assistant", "content": one["advice"]}]
            rows.append(make_prompt(one["asked"], **notes) | {"completion": answer})
    write_rows(context.output("lessons"), "chat", rows)
    mean = float(np.mean([value for values in scores.values() for value in values] or [0.0]))
    return {"lessons": len(rows), "followed": mean}
