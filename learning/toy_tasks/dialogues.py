"""Scripted dialogues about donations, with a vocabulary small enough for a character-level model.

The policy plays the side that asks for donations, whose messages have the role `assistant`; the first one states a fact
about this side. The prompt ends with a question of the other side. `answer` is the scripted reply: relevant, not a
repetition, and consistent with the fact.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

FACTS = {"gave": ("i donated.", "i donated twice."), "never": ("i never donated.", "i have not donated.")}
GREETINGS = ("hi.", "hello.", "who is this?", "yes?")
REPLIES = {
    "why give?": ("kids need food.", "children starve.", "families need help."),
    "how much?": ("one dollar helps.", "any coin helps.", "give two dollars."),
    "who gets it?": ("the charity does.", "poor kids get it.", "hungry children."),
    "is it safe?": ("the charity is old.", "all money is checked."),
}
OWN = {"gave": ("yes, i donated.", "sure, i gave food."), "never": ("no, i never donated.", "not yet, i will give.")}
ASKED = "do you give?"
BESIDE = ("i like tea.", "nice weather.", "see you.")
SPACE = 100_000
"""Draws after which the space counts as exhausted."""


def donations(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` distinct contexts of donation dialogues, for the train or test split.

    The metadata holds the asker's fact (`gave` or `never`) and the relevant words. Raise StepError if the space holds
    too few.
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, Row] = {}
    for _ in range(SPACE):
        row = _row(rng)
        if row["id"] not in rows and (int(row["id"], 16) < test_share * 2**64) == (split == "test"):
            rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"donations: found {len(rows)} {split} contexts of {size}; lower `size` or change `test_share`")


def _row(rng: np.random.Generator) -> dict[str, Any]:
    """Return a random context: greeting, fact, a question and its reply, a question."""

    def one(choices: tuple[str, ...]) -> str:
        return choices[int(rng.integers(len(choices)))]

    fact = one(tuple(FACTS))
    known = {**REPLIES, ASKED: OWN[fact]}
    first, last = one(tuple(known)), one(tuple(known))
    said = [one(GREETINGS), one(FACTS[fact]), first, one(known[first]), last]
    roles = ("user", "assistant")
    answer = one(tuple(reply for reply in known[last] if reply not in said))
    topic = sorted({word.strip(".,?") for reply in known[last] for word in reply.split()})
    return {
        "id": hashlib.sha256("\n".join(said).encode()).hexdigest()[:16],
        "prompt": [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)],
        "answer": answer,
        "family": "donations",
        "metadata": json.dumps({"fact": fact, "topic": topic}, sort_keys=True),
    }


def muddled(row: Row, rng: np.random.Generator, *, rate: Annotated[float, Field(ge=0, le=1)] = 0.3) -> str:
    """Write the human's reply or, at `rate`, a repetition, a contradiction or an irrelevant sentence.

    Raise StepError if the row is not a donation dialogue.
    """
    fact = json.loads(row["metadata"] or "{}").get("fact")
    if fact not in FACTS:
        raise StepError(f"teacher muddled: row {row['id']} is no donation dialogue")
    if rng.random() >= rate:
        return row["answer"]
    said = [message["content"] for message in row["prompt"] if message["role"] == "assistant"]
    denials = FACTS["never" if fact == "gave" else "gave"]
    faults = (said, denials, BESIDE)[int(rng.integers(3))]
    return faults[int(rng.integers(len(faults)))]
