"""Rewards of summaries of posts."""

from learning.data.rows import Row
from learning.toy_tasks.posts import read_topic


def topical(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if the summary keeps the word that the post is about, else 0."""
    words = [completion.replace(".", " ").split() for completion in completions]
    return [float(read_topic(row)["topic"] in summary) for row, summary in zip(rows, words, strict=True)]
