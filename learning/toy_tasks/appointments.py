"""Conversations with an assistant who has a phone book and a calendar: several requests, each with a checklist.

Its five tools are simulated: the metadata hold what they reply, for the environment `requests` with `checklist` and the
tool `recorded`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.contacts import NAMES
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

Request = Literal["number", "date", "book", "tell"]
TOOLS = ("find", "agenda", "free", "book", "send")
DRAWS = 40
"""Draws per requested problem after which the space counts as exhausted."""
Items = list[dict[str, Any]]


@dataclass
class Diary:
    """What is known about people and days, and what the tools have to say about it."""

    numbers: dict[str, str]
    dates: dict[str, str]
    is_free: dict[str, bool]
    replies: dict[str, dict[str, str]] = field(default_factory=lambda: {tool: {} for tool in TOOLS})

    def call(self, tool: str, query: str, reply: str) -> str:
        """Note what a tool replies, and return the call."""
        self.replies[tool][query] = reply
        return f"{tool}: {query}"


def appointments(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    requests: Annotated[int, Field(ge=1, le=4)] = 2,
    kinds: Annotated[list[Request], Field(min_length=1)] = ["number", "date", "book", "tell"],  # noqa: B006
) -> list[Row]:
    """Generate `size` conversations of `requests` requests of random `kinds`, with simulated tools and checklists.

    `number of ann?` needs `find: ann`, `when is bob?` needs `agenda: bob`; `book cleo on 12` asks whether the day is
    free, books it if so, and says `done` or `taken`; `tell dan 12` sends it to dan's number. The checklist of a request
    has three items: the first call (a half), what the deciding call shows (three tenths), and what is said at last.
    A conversation is in the test split by the hash of all of it. Raise StepError if the space holds too few.
    """
    rng = np.random.default_rng([seed, split == "test", requests])

    def draw(rows: dict[str, Row]) -> Row | None:
        people = [NAMES[int(i)] for i in rng.choice(len(NAMES), size=requests, replace=False)]
        days = [str(day) for day in rng.choice(np.arange(10, 31), size=requests, replace=False)]
        diary = Diary(
            {name: str(rng.integers(100, 1000)) for name in people},
            {name: str(rng.integers(10, 31)) for name in people},
            {day: bool(rng.random() < 0.5) for day in days},
        )
        chosen: list[Request] = [kinds[int(i)] for i in rng.integers(len(kinds), size=requests)]
        asked = [ask(kind, diary, name, day) for kind, name, day in zip(chosen, people, days, strict=True)]
        texts = " ".join(text for text, _, _ in asked)
        salt = f"appointments {texts} {sorted(diary.numbers.items())} {sorted(diary.is_free.items())}"
        if not is_in_split(hash_text(salt), split, test_share):
            return None
        about = {
            "requests": [{"text": text, "checklist": items} for text, _, items in asked],
            "replies": diary.replies,
            "script": [turn for _, script, _ in asked for turn in script],
        }
        # The number of the case tells conversations apart that begin with the same request.
        return make_row("appointments", f"{int(hash_text(salt), 16) % 10_000:04} {asked[0][0]}", None, about, salt=salt)

    return draw_rows(draw, size, DRAWS * size, "appointments", split, "allow more `kinds`")


def ask(kind: Request, diary: Diary, name: str, day: str) -> tuple[str, list[str], Items]:
    """Return the text of a request, the turns that carry it out, and its checklist."""
    if kind == "number":
        number = diary.numbers[name]
        calls = [diary.call("find", name, number)]
        return f"number of {name}?", [*calls, number], _list_items(calls, number, number)
    if kind == "date":
        date = diary.dates[name]
        calls = [diary.call("agenda", name, date)]
        return f"when is {name}?", [*calls, date], _list_items(calls, date, date)
    if kind == "tell":
        number = diary.numbers[name]
        calls = [diary.call("find", name, number), diary.call("send", f"{number} {day}", "sent")]
        return f"tell {name} {day}", [*calls, "done"], _list_items(calls, "sent", "done")
    is_free = diary.is_free[day]
    calls = [diary.call("free", day, "yes" if is_free else "no")]
    booking = diary.call("book", f"{name} {day}", "booked")
    calls += [booking] if is_free else []
    said = "done" if is_free else "taken"
    return f"book {name} on {day}", [*calls, said], _list_items(calls, "booked" if is_free else "no", said)


def _list_items(calls: Sequence[str], shown: str, said: str) -> Items:
    """Return the items of a request: its first call, what a tool has to show, and what has to be said."""
    return [
        {"item": "makes the first call", "evidence": [calls[0]], "weight": 0.5},
        {"item": "a tool shows what decides", "evidence": [shown], "weight": 0.3, "focus": "answer"},
        {"item": "says how it ended", "evidence": [said], "weight": 0.2},
    ]
