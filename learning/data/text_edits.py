"""Texts with a plausible mistake."""

import re

import numpy as np


def mistaken(text: str, rng: np.random.Generator) -> str:
    """Return another text that looks like an answer: a number nearby, two neighbours swapped, or a letter doubled."""
    if re.fullmatch(r"-?\d{1,1000}", text):
        return str(int(text) + int(rng.choice([-2, -1, 1, 2])))
    places = [i for i in range(len(text) - 1) if text[i] != text[i + 1]]
    if not places:
        return text + (text[-1] if text else "?")
    i = int(rng.choice(places))
    return text[:i] + text[i + 1] + text[i] + text[i + 2 :]
