"""Suggestions for a misspelt word, computed in bounded time.

The words come from recipes and from the command line, so that neither the word nor the choices may cost much time:
choices that cannot be near are left out first, and then those beyond `EFFORT`.
"""

import difflib
from collections.abc import Iterable, Iterator

from schemas.errors import printable

EFFORT = 100_000
"""Pairs of letters that are compared for one suggestion."""
LONGEST = 80
"""Characters of a word that is compared or listed."""
LISTED = 40
"""Words that are listed."""
FEW = 12
"""Up to so many words are listed although one of them is suggested."""


def suggest(word: str, words: Iterable[str], noun: str) -> str:
    """Return advice: the nearest of `words`, and all of them where they are few."""
    choices = list(dict.fromkeys(words))
    if not choices:
        return f"this place has no {noun}"
    is_cheap = len(word) * sum(map(len, choices)) <= EFFORT and all(len(choice) <= LONGEST for choice in choices)
    if is_cheap:
        near = nearest(word, choices)
    else:
        near = nearest(word, _comparable(word, choices)) if len(word) <= LONGEST else None
    hint = f"did you mean `{near}`?" if near is not None else ""
    if near is not None and len(choices) > (FEW if is_cheap else LISTED):
        return hint
    more = ", ..." if len(choices) > LISTED else ""
    listed = f"{noun}: {', '.join(printable(choice, LONGEST) for choice in choices[:LISTED])}{more}"
    return f"{hint} {listed}".strip()


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the word most like `word`, or None; of a dotted name the last part counts as well."""
    choices = list(dict.fromkeys(words))
    folded = {choice.lower().replace("-", "_"): choice for choice in reversed(choices)}
    wanted = word.lower().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    for choice in choices:
        if choice.rpartition(".")[2] == word or (len(word) > 3 and choice.lower().startswith(wanted)):
            return choice
    scored = [(_similarity(wanted, choice), -index, choice) for index, choice in enumerate(reversed(folded))]
    best = max(scored, default=(0.0, 0, ""))
    return folded[best[2]] if best[0] >= 0.6 else None


def _similarity(one: str, other: str) -> float:
    """Return the share of matching letters; letters in another order are the likeliest slip and count extra."""
    swapped = 0.3 if sorted(one) == sorted(other) else 0.0
    return difflib.SequenceMatcher(None, one, other).ratio() + swapped


def _comparable(word: str, choices: Iterable[str]) -> Iterator[str]:
    """Yield the choices of about the length of `word`, as many as `EFFORT` allows."""
    left = EFFORT
    for choice in choices:
        if len(choice) <= LONGEST and 0.4 * len(word) <= len(choice) <= 2.5 * len(word):
            left -= len(word) * len(choice)
            if left < 0:
                return
            yield choice
