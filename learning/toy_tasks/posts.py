"""Posts of three sentences to summarise: a good summary keeps the word that the post is about.

The metadata of a row holds that word as `topic`; `answer` is a summary that keeps it.
"""

import json

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, check_size, hash_text, is_in_split, read_metadata

TOPICS = ("fox", "owl", "cook", "king", "robot", "child", "sailor", "doctor")
DEEDS = ("ran home", "ate soup", "lost a key", "won a race", "fell asleep", "read a book", "found gold", "sang")
ASIDES = ("it rained", "the sun shone", "time passed", "nobody knew", "all was calm", "the wind blew")
INSTEAD = ("someone", "one of them", "somebody")


def posts(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` distinct posts, `the fox ran home. it rained. the fox sang. tl;dr`, for the train or test split.

    Raise StepError if there are too few.
    """
    shape = (len(TOPICS), len(DEEDS), len(ASIDES), len(DEEDS))
    rows = []
    for place in np.random.default_rng(seed).permutation(int(np.prod(shape))):
        topic, first, aside, last = (int(i) for i in np.unravel_index(place, shape))
        row = _row(TOPICS[topic], DEEDS[first], ASIDES[aside], DEEDS[last])
        if first != last and is_in_split(row["id"], split, test_share):
            rows.append(row)
        if len(rows) == size:
            break
    check_size("posts", split, len(rows), size)
    return rows


def _row(topic: str, first: str, aside: str, last: str) -> Row:
    text = f"the {topic} {first}. {aside}. the {topic} {last}. tl;dr"
    return {
        "id": hash_text(text),
        "prompt": [{"role": "user", "content": text}],
        "answer": f"the {topic} {last}.",
        "family": "posts",
        "metadata": json.dumps({"topic": topic, "last": last}, sort_keys=True),
    }


def summed_up(row: Row, rng: np.random.Generator, *, lost: Rate = 0.5) -> str:
    """Write the last event in the post's words; a share `lost` of the summaries omits the subject.

    Raise StepError if the row is not a post.
    """
    about = read_topic(row)
    who = INSTEAD[int(rng.integers(len(INSTEAD)))] if rng.random() < lost else f"the {about['topic']}"
    return f"{who} {about['last']}."


def read_topic(row: Row) -> dict[str, str]:
    """Return topic and last event of a post; raise StepError if the row is not a post."""
    return read_metadata(row, "posts", lambda metadata: {name: metadata[name] for name in ("topic", "last")})
