"""Suggestions for words that an author chose, among words that an author chose: in time that neither can stretch.

`schemas.nearest` compares every letter of one word with every letter of the other, for each choice. Where that would
take long, words that cannot be near are left out first, and then those beyond what the effort allows.
"""

from collections.abc import Iterable, Iterator

from schemas import nearest
from schemas.tree import shown

EFFORT = 100_000
"""Pairs of letters that are compared for one suggestion."""
LONGEST = 80
"""Characters of a word that is compared or listed."""
LISTED = 40
"""Words that are listed."""


def suggest(word: str, words: Iterable[str], noun: str) -> str:
    """Advice: the nearest word, and the words there are when they are few."""
    choices = list(dict.fromkeys(words))
    if len(word) * sum(map(len, choices)) <= EFFORT and all(len(choice) <= LONGEST for choice in choices):
        return nearest.suggest(word, choices, noun)
    near = nearest.nearest(word, _comparable(word, choices)) if len(word) <= LONGEST else None
    if near is not None and len(choices) > LISTED:
        return f"did you mean `{near}`?"
    more = ", ..." if len(choices) > LISTED else ""
    listed = f"{noun}: {', '.join(shown(choice, LONGEST) for choice in choices[:LISTED])}{more}"
    return f"did you mean `{near}`? {listed}" if near is not None else listed


def _comparable(word: str, choices: Iterable[str]) -> Iterator[str]:
    """Choices of about the length of the word, as many as the effort allows."""
    left = EFFORT
    for choice in choices:
        if len(choice) <= LONGEST and 0.4 * len(word) <= len(choice) <= 2.5 * len(word):
            left -= len(word) * len(choice)
            if left < 0:
                return
            yield choice
