"""Suggestions for a misspelt word, computed in bounded time.

The words come from recipes and the command line and may be very long: choices of a different length are ignored first,
and then those beyond `EFFORT`.
"""

import difflib
from collections.abc import Iterable, Iterator

from schemas.errors import printable

EFFORT = 100_000
"""Most pairs of letters that are compared for one suggestion."""
LONGEST = 80
"""Most characters of a word that is compared or listed."""
LISTED = 40
"""Most words in a list."""
FEW = 12
"""Most words that are listed in addition to a suggestion."""


def suggest(word: str, words: Iterable[str], noun: str) -> str:
    """Return advice: the nearest of `words`, and a list of all of them if it is short."""
    choices = list(dict.fromkeys(words))
    if not choices:
        return f"there are no {noun} here"
    is_cheap = len(word) * sum(map(len, choices)) <= EFFORT and all(len(choice) <= LONGEST for choice in choices)
    if is_cheap:
        near = find_nearest(word, choices)
    else:
        near = find_nearest(word, _select_comparable(word, choices)) if len(word) <= LONGEST else None
    hint = f"did you mean `{near}`?" if near is not None else ""
    if near is not None and len(choices) > (FEW if is_cheap else LISTED):
        return hint
    more = ", ..." if len(choices) > LISTED else ""
    listed = f"{noun}: {', '.join(printable(choice, LONGEST) for choice in choices[:LISTED])}{more}"
    return f"{hint} {listed}".strip()


def find_nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the most similar word, or None; the last part of a dotted name counts by itself, too."""
    choices = list(dict.fromkeys(words))
    folded = {choice.lower().replace("-", "_"): choice for choice in reversed(choices)}
    lowered = word.lower().replace("-", "_")
    if lowered in folded:
        return folded[lowered]
    for choice in choices:
        if choice.rpartition(".")[2] == word or (len(word) > 3 and choice.lower().startswith(lowered)):
            return choice
    last = lowered.rpartition(".")[2]
    same = {choice: full for choice, full in folded.items() if "." in lowered and choice.rpartition(".")[2] == last}
    near = same or folded
    scored = [(_measure_similarity(lowered, choice), -index, choice) for index, choice in enumerate(reversed(near))]
    best = max(scored, default=(0.0, 0, ""))
    return near[best[2]] if same or best[0] >= 0.6 else None


def _measure_similarity(one: str, other: str) -> float:
    """Return the share of matching letters, plus a bonus for the same letters in another order."""
    swapped = 0.3 if sorted(one) == sorted(other) else 0.0
    return difflib.SequenceMatcher(None, one, other).ratio() + swapped


def _select_comparable(word: str, choices: Iterable[str]) -> Iterator[str]:
    """Yield the choices of about the length of `word`, as many as `EFFORT` allows."""
    left = EFFORT
    for choice in choices:
        if len(choice) <= LONGEST and 0.4 * len(word) <= len(choice) <= 2.5 * len(word):
            left -= len(word) * len(choice)
            if left < 0:
                return
            yield choice
