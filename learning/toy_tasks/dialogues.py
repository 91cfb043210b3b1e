"""Scripted dialogues about donations, with a vocabulary small enough for a character-level model.

The policy plays the side that asks for donations, whose messages have the role `assistant`; the first one states a fact
about this side. The prompt ends with a question of the other side. `answer` is the scripted reply: relevant, not a
repetition, and consistent with the fact.
"""

import json

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split
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
QUESTION = "do you give?"
IRRELEVANT = ("i like tea.", "nice weather.", "see you.")
SPACE = 100_000
"""Draws after which the space counts as exhausted."""


def donations(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` distinct contexts of donation dialogues, for the train or test split.

    The metadata holds the asker's fact (`gave` or `never`) and the relevant words. Raise StepError if the space holds
    too few.
    """
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row | None:
        row = _row(rng)
        return rows.get(row["id"], row) if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, SPACE, "donations", split, "lower `size` or change `test_share`")


def _row(rng: np.random.Generator) -> Row:
    """Return a random context: greeting, fact, a question and its reply, a question."""

    def one(choices: tuple[str, ...]) -> str:
        return choices[int(rng.integers(len(choices)))]

    fact = one(tuple(FACTS))
    replies = {**REPLIES, QUESTION: OWN[fact]}
    first, last = one(tuple(replies)), one(tuple(replies))
    messages = [one(GREETINGS), one(FACTS[fact]), first, one(replies[first]), last]
    roles = ("user", "assistant")
    answer = one(tuple(reply for reply in replies[last] if reply not in messages))
    topic = sorted({word.strip(".,?") for reply in replies[last] for word in reply.split()})
    return {
        "id": hash_text("\n".join(messages)),
        "prompt": [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)],
        "answer": answer,
        "family": "donations",
        "metadata": json.dumps({"fact": fact, "topic": topic}, sort_keys=True),
    }


def muddled(row: Row, rng: np.random.Generator, *, rate: Rate = 0.3) -> str:
    """Write the human's reply or, at `rate`, a repetition, a contradiction or an irrelevant sentence.

    Raise StepError if the row is not a donation dialogue.
    """
    fact = json.loads(row["metadata"] or "{}").get("fact")
    if fact not in FACTS:
        raise StepError(f"teacher muddled: the metadata of row {row['id']} has no `fact`; use problems of `donations`")
    if rng.random() >= rate:
        return row["answer"]
    repetitions = [message["content"] for message in row["prompt"] if message["role"] == "assistant"]
    denials = FACTS["never" if fact == "gave" else "gave"]
    faults = (repetitions, denials, IRRELEVANT)[int(rng.integers(3))]
    return faults[int(rng.integers(len(faults)))]
