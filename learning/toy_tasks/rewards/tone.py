"""Rewards for the tone of a text, from lists of words."""

import re

from learning.data.rows import Row
from learning.toy_tasks.opinions import BAD, GOOD


def kind(rows: list[Row], completions: list[str]) -> list[float | None]:
    """(Kind − unkind words) / (kind + unkind words), from −1 to 1; 0 without any."""
    return [_score_tone(re.findall("[a-z]+", text.lower())) for text in completions]


def _score_tone(words: list[str]) -> float:
    good, bad = sum(word in GOOD for word in words), sum(word in BAD for word in words)
    return (good - bad) / (good + bad) if good + bad else 0.0
