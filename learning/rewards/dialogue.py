"""Sentence-level rewards in a dialogue, from what its context holds alone: nobody answers the sentence.

The speaker's earlier utterances are the assistant's messages of the prompt.
"""

import json
import re
from typing import Annotated, Any

from pydantic import Field

NEGATIONS = {"not", "never", "no", "none", "nothing"}
FILLERS = {"yes", "sure", "well", "have", "has", "had", "do", "did", "does", "yet", "ever", "a", "the", "to"}
Penalty = Annotated[float, Field(ge=0)]
Claim = tuple[frozenset[str], bool]
"""Words with a meaning of their own, and whether a sentence denies what they say."""
PAIRS = 200_000
"""Pairs of sentences that are compared for one completion."""


def repetition(
    rows: list[dict[str, Any]],
    completions: list[str],
    *,
    penalty: Penalty = 1.0,
    overlap: Annotated[float, Field(gt=0, le=1)] = 0.8,
) -> list[float | None]:
    """−penalty where the words are (nearly) those of an earlier utterance of the speaker's own, else 0.

    Nearly: words in common over words in either are at least `overlap`.
    """
    return [
        -penalty if any(_compute_overlap(text, old) >= overlap for old in read_own_utterances(row)) else 0.0
        for row, text in zip(rows, completions, strict=True)
    ]


def inconsistency(rows: list[dict[str, Any]], completions: list[str], *, penalty: Penalty = 1.0) -> list[float | None]:
    """−penalty where a sentence denies what the speaker said before (`i donated` and `i never donated`), else 0.

    None where there are too many sentences to be compared with each other.
    """
    found: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        mine, before = _parse_claims(text), _parse_claims("\n.".join(read_own_utterances(row)))
        if len(mine) * len(before) > PAIRS:
            found.append(None)
        else:
            found.append(-penalty if any(_denies(a, b) for a in mine for b in before) else 0.0)
    return found


def relevance(rows: list[dict[str, Any]], completions: list[str], *, reward: Penalty = 1.0) -> list[float | None]:
    """`reward` where a word is to the point, by the row's `topic` in its metadata; None for rows without one."""
    found: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        topic = json.loads(row["metadata"] or "{}").get("topic")
        found.append(None if topic is None else reward * bool(_read_content_words(text) & set(topic)))
    return found


def read_own_utterances(row: dict[str, Any]) -> list[str]:
    """What the speaker said before."""
    return [message["content"] for message in row["prompt"] if message["role"] == "assistant"]


def contradicts(text: str, old: str) -> bool:
    """Whether two utterances hold sentences that say the same but for a negation."""
    return any(_denies(a, b) for a in _parse_claims(text) for b in _parse_claims(old))


def _parse_claims(text: str) -> set[Claim]:
    """The sentences of a text that say enough to be denied."""
    sentences = [_read_words(sentence) for sentence in set(re.split(r"[.!?]+", text))]
    claims = {(frozenset(words - NEGATIONS - FILLERS), bool(words & NEGATIONS)) for words in sentences}
    return {(content, negated) for content, negated in claims if len(content) >= 2}


def _denies(a: Claim, b: Claim) -> bool:
    (one, negated), (other, denied) = a, b
    return negated != denied and len(one & other) >= 2 and (one <= other or other <= one)


def _compute_overlap(a: str, b: str) -> float:
    one, other = _read_words(a), _read_words(b)
    return len(one & other) / len(one | other) if one | other else 1.0


def _read_words(text: str) -> set[str]:
    """Words in lower case; `don't` counts as `do not`."""
    return set(re.findall(r"[a-z]+", text.lower().replace("n't", " not")))


def _read_content_words(text: str) -> set[str]:
    return _read_words(text) - NEGATIONS - FILLERS
