"""Problems about whole dialogues: what a partner says, how good they were, and which turn should have been another."""

import json
from pathlib import Path

from learning.data.dialogues import exchange_roles, list_messages, number_turns, read_return
from learning.data.questions import make_question
from learning.data.rows import Row, read_metadata, read_rows
from schemas.errors import StepError
from schemas.references import ChatRef


def partner_talks(*, data: ChatRef) -> list[Row]:
    """Return dialogues as the partner sees them, up to its last turn, to train a model of the partner with.

    `teacher: answer` writes the last turn as the completion; train with `train_on: all`. A dialogue without a turn of
    the partner after one of the agent is left out. Raise StepError if none is left.
    """
    made = []
    for row in read_rows(Path(data), "chat"):
        seen = exchange_roles(list_messages(row))
        seen = seen if seen[-1]["role"] == "assistant" else seen[:-1]
        if seen:
            made.append(_pick(row) | {"prompt": seen[:-1], "answer": seen[-1]["content"]})
    if not made:
        raise StepError("partner_talks: no dialogue of `data` has a turn of the partner after one of the agent")
    return made


def rated_talks(
    *, data: ChatRef, template: str, at_least: float = 1.0, good: str = "good", bad: str = "bad"
) -> list[Row]:
    """Return questions whether dialogues earned `at_least`, answered with `good` or `bad`, to train a judge with.

    The question is `template` with {prompt}, everything before the last turn, and {completion}, the last turn, as the
    reward `judges.model` asks it, for which such a model is a judge with `words: {good: 1, bad: 0}`.
    """
    return [
        _pick(row)
        | {"prompt": make_question(template, row, completion=str(row["completion"][-1]["content"]))}
        | {"answer": good if read_return(row) >= at_least else bad}
        for row in read_rows(Path(data), "chat")
    ]


def whole_talks(
    *,
    data: ChatRef,
    text: str = "{talk}",
    at_most: float | None = None,
    agent: str = "agent",
    partner: str = "partner",
) -> list[Row]:
    """Return whole dialogues to be judged in hindsight: `text` with {talk}, a line for each turn, the agent's numbered.

    `at_most` leaves out dialogues that earned more. What is written about a dialogue finds it again by the metadata
    `source` (`learning.sampling.hindsight:regenerate`). Raise StepError for a `text` without {talk}, or if none is
    left.
    """
    if "{talk}" not in text:
        raise StepError("whole_talks: `text` has no {talk}; add it")
    rows = [row for row in read_rows(Path(data), "chat") if at_most is None or read_return(row) <= at_most]
    if not rows:
        raise StepError(f"whole_talks: every dialogue of `data` earned more than {at_most}; raise `at_most`")
    made = []
    for row in rows:
        shown = text.replace("{talk}", number_turns(list_messages(row), agent, partner))
        metadata = json.dumps(read_metadata(row) | {"source": row["id"]})
        made.append(_pick(row) | {"prompt": [{"role": "user", "content": shown}], "metadata": metadata})
    return made


def _pick(row: Row) -> Row:
    """Return what a problem keeps of its dialogue."""
    return {"id": row["id"], "answer": None, "family": row["family"], "metadata": row["metadata"]}
