"""Posts of three sentences to summarise: a good summary keeps the word that the post is about.

The metadata of a row holds that word as `topic`; `answer` is a summary that keeps it.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

TOPICS = ("fox", "owl", "cook", "king", "robot", "child", "sailor", "doctor")
DEEDS = ("ran home", "ate soup", "lost a key", "won a race", "fell asleep", "read a book", "found gold", "sang")
ASIDES = ("it rained", "the sun shone", "time passed", "nobody knew", "all was calm", "the wind blew")
INSTEAD = ("someone", "one of them", "somebody")
Share = Annotated[float, Field(ge=0, le=1)]


def posts(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` distinct posts, `the fox ran home. it rained. the fox sang. tl;dr`, for the train or test split.

    Raise StepError if there are too few.
    """
    shape = (len(TOPICS), len(DEEDS), len(ASIDES), len(DEEDS))
    rows = []
    for place in np.random.default_rng(seed).permutation(int(np.prod(shape))):
        topic, first, aside, last = (int(i) for i in np.unravel_index(place, shape))
        row = _row(TOPICS[topic], DEEDS[first], ASIDES[aside], DEEDS[last])
        if first != last and (int(row["id"], 16) < test_share * 2**64) == (split == "test"):
            rows.append(row)
        if len(rows) == size:
            return rows
    raise StepError(f"posts: there are {len(rows)} {split} posts, {size} are wanted; lower `size`")


def _row(topic: str, first: str, aside: str, last: str) -> dict[str, Any]:
    text = f"the {topic} {first}. {aside}. the {topic} {last}. tl;dr"
    return {
        "id": hashlib.sha256(text.encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": f"the {topic} {last}.",
        "family": "posts",
        "metadata": json.dumps({"topic": topic, "last": last}, sort_keys=True),
    }


def summed_up(row: Row, rng: np.random.Generator, *, lost: Share = 0.5) -> str:
    """Write the last event in the post's words; a share `lost` of the summaries omits the subject.

    Raise StepError if the row is not a post.
    """
    about = known(row)
    who = INSTEAD[int(rng.integers(len(INSTEAD)))] if rng.random() < lost else f"the {about['topic']}"
    return f"{who} {about['last']}."


def known(row: Row) -> dict[str, str]:
    """Return topic and last event of a post; raise StepError if the row is not a post."""
    about = json.loads(row["metadata"] or "{}")
    if "topic" not in about:
        raise StepError(f"row {row['id']} is no post: its metadata names no topic")
    return about
