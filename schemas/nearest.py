"""Did you mean."""

import difflib
from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word most like `word`, None when none is like it; of dotted names the last part counts as well."""
    choices = list(dict.fromkeys(words))
    folded = {c.lower().replace("-", "_"): c for c in reversed(choices)}
    wanted = word.lower().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    for choice in choices:
        if choice.rpartition(".")[2] == word or (len(word) > 3 and choice.lower().startswith(wanted)):
            return choice
    scored = [(_likeness(wanted, c), -i, c) for i, c in enumerate(reversed(folded))]
    best = max(scored, default=(0.0, 0, ""))
    return folded[best[2]] if best[0] >= 0.6 else None


def _likeness(one: str, other: str) -> float:
    """Share of matching letters; letters in another order are the likeliest slip of all."""
    swapped = 0.3 if sorted(one) == sorted(other) else 0.0
    return difflib.SequenceMatcher(None, one, other).ratio() + swapped


def suggest(word: str, words: Iterable[str], noun: str) -> str:
    """Advice: the nearest word, and the words there are when they are few."""
    choices = list(dict.fromkeys(words))
    near = nearest(word, choices)
    hint = f"did you mean `{near}`?" if near else ""
    if not choices:
        return f"this place has no {noun}"
    if near and len(choices) > 12:
        return hint
    listed = f"{noun}: {', '.join(choices[:40])}{', ...' if len(choices) > 40 else ''}"
    return f"{hint} {listed}".strip()
