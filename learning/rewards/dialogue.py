"""Sentence-level rewards in a dialogue, computed from its context alone.

The speaker's earlier utterances are the assistant's messages of the prompt.
"""

import json
import re
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row, read_metadata

NEGATIONS = {"not", "never", "no", "none", "nothing"}
FILLERS = {"yes", "sure", "well", "have", "has", "had", "do", "did", "does", "yet", "ever", "a", "the", "to"}
Penalty = Annotated[float, Field(ge=0)]
Claim = tuple[frozenset[str], bool]
"""The content words of a sentence, and whether it is negated."""
PAIRS = 200_000
"""The most pairs of sentences that are compared for one completion."""


def repetition(
    rows: list[Row],
    completions: list[str],
    *,
    penalty: Penalty = 1.0,
    overlap: Annotated[float, Field(gt=0, le=1)] = 0.8,
) -> list[float | None]:
    """−penalty if the completion repeats an earlier utterance of the speaker, else 0.

    It repeats one if the words in common over the words in either are at least `overlap`.
    """
    return [
        -penalty if any(_compute_overlap(text, old) >= overlap for old in read_own_utterances(row)) else 0.0
        for row, text in zip(rows, completions, strict=True)
    ]


def inconsistency(rows: list[Row], completions: list[str], *, penalty: Penalty = 1.0) -> list[float | None]:
    """−penalty if a sentence contradicts an earlier utterance of the speaker (`i donated`, `i never donated`), else 0.

    None if there are too many pairs of sentences to compare.
    """
    scores: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        claims, earlier = _parse_claims(text), _parse_claims("\n.".join(read_own_utterances(row)))
        if len(claims) * len(earlier) > PAIRS:
            scores.append(None)
        else:
            scores.append(-penalty if any(_denies(a, b) for a in claims for b in earlier) else 0.0)
    return scores


def relevance(rows: list[Row], completions: list[str], *, reward: Penalty = 1.0) -> list[float | None]:
    """`reward` if a word is in the row's `topic` (in its metadata), else 0; None for rows without one."""
    scores: list[float | None] = []
    for row, text in zip(rows, completions, strict=True):
        topic = json.loads(row["metadata"] or "{}").get("topic")
        scores.append(None if topic is None else reward * bool(_read_content_words(text) & set(topic)))
    return scores


def personal(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if the utterance suits the partner's profile, the `facts` in the row's metadata, else 0; None without facts.

    It suits if it mentions one of their values, in any case, or asks for something that is not among them: it ends with
    a question mark and has none of their names.
    """
    return [_suits(read_metadata(row).get("facts"), text) for row, text in zip(rows, completions, strict=True)]


def _suits(facts: object, text: str) -> float | None:
    if not isinstance(facts, dict):
        return None
    words = text.casefold()
    mentioned = any(re.search(rf"\b{re.escape(str(value).casefold())}\b", words) for value in facts.values())
    asks = words.rstrip().endswith("?") and not _read_words(words) & {str(name).casefold() for name in facts}
    return float(mentioned or asks)


def read_own_utterances(row: Row) -> list[str]:
    """Return the earlier utterances of the speaker."""
    return [message["content"] for message in row["prompt"] if message["role"] == "assistant"]


def contradicts(text: str, old: str) -> bool:
    """Return whether two utterances contain sentences that are equal except for a negation."""
    return any(_denies(a, b) for a in _parse_claims(text) for b in _parse_claims(old))


def _parse_claims(text: str) -> set[Claim]:
    """Return the claims of a text: sentences of at least two content words."""
    sentences = [_read_words(sentence) for sentence in set(re.split(r"[.!?]+", text))]
    claims = {(frozenset(words - NEGATIONS - FILLERS), bool(words & NEGATIONS)) for words in sentences}
    return {(content, negated) for content, negated in claims if len(content) >= 2}


def _denies(a: Claim, b: Claim) -> bool:
    (words_a, negated_a), (words_b, negated_b) = a, b
    return negated_a != negated_b and len(words_a & words_b) >= 2 and (words_a <= words_b or words_b <= words_a)


def _compute_overlap(a: str, b: str) -> float:
    words_a, words_b = _read_words(a), _read_words(b)
    return len(words_a & words_b) / len(words_a | words_b) if words_a | words_b else 1.0


def _read_words(text: str) -> set[str]:
    """Return the words of a text in lower case; `don't` counts as `do not`."""
    return set(re.findall(r"[a-z]+", text.lower().replace("n't", " not")))


def _read_content_words(text: str) -> set[str]:
    return _read_words(text) - NEGATIONS - FILLERS
