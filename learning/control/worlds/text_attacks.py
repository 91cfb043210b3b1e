"""Attacks on watermarked texts: words are deleted or replaced by synonyms, or the meaning is turned round.

Meanings are pairs of groups of words: those of a group mean the same, and the groups of a pair are opposites.
"""

from collections.abc import Sequence

import numpy as np

Meanings = Sequence[tuple[Sequence[str], Sequence[str]]]


def remove_words(text: str, share: float, rng: np.random.Generator) -> str:
    """Return a text without each of its words at a rate of `share`."""
    words = text.split()
    return " ".join(word for word, drawn in zip(words, rng.random(len(words)), strict=True) if drawn >= share)


def swap_words(text: str, meanings: Meanings, share: float, rng: np.random.Generator) -> str:
    """Return a text in which words of a group are replaced by another of the group, at a rate of `share`."""
    groups = [group for pair in meanings for group in pair]
    words = text.split()
    for i, drawn in enumerate(rng.random(len(words))):
        others = [other for group in groups if words[i] in group for other in group if other != words[i]]
        if others and drawn < share:
            words[i] = others[int(rng.integers(len(others)))]
    return " ".join(words)


def turn_round(text: str, meanings: Meanings) -> str:
    """Return a text in which every word of a group is replaced by one of the opposite group."""
    opposite: dict[str, str] = {}
    for one, other in meanings:
        for here, there in ((one, other), (other, one)):
            opposite |= {word: there[i % len(there)] for i, word in enumerate(here)}
    return " ".join(opposite.get(word, word) for word in text.split())
