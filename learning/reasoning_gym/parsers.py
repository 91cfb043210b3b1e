"""Verifiers of reasoning-gym that may read a model's text in the trainer, because they only compare it.

Each was reviewed and is identified by the digest of its source: with another release, or if a family overrides it, the
text is scored in the sandbox instead, with the same score. Requirements: no evaluation, no conversion to numbers, no
pattern matching, no loop over the text except Python's own comparison and search, no side effects, and no bare
`except`, which would swallow the signal that ends a step.
"""

import hashlib
import inspect
from functools import lru_cache
from typing import Any

from learning.reasoning_gym.families import origin_of
from schemas.base import JsonObject
from schemas.errors import StepError

COMPARE_ONLY = {
    "reasoning_gym.dataset:ProceduralDataset.score_answer": "d4c377f0ac8e002f",
    "reasoning_gym.algorithmic.ab:ABDataset.score_answer": "971dd36e114cefaf",
    "reasoning_gym.arithmetic.dice:DiceDataset.score_answer": "22106cc818ff5889",
    "reasoning_gym.cognition.needle_haystack:NeedleHaystackDataset.score_answer": "893991e5501f3dc5",
    "reasoning_gym.graphs.path_star:PathStarDataset.score_answer": "4b5b506dd0a0536a",
    "reasoning_gym.logic.circuit_logic:CircuitLogicDataset.score_answer": "55d9642b99b8a29a",
    "reasoning_gym.logic.self_reference:SelfReferenceDataset.score_answer": "0b7189ccb3c384b4",
    "reasoning_gym.logic.zebra_puzzles:ZebraDataset.score_answer": "4e5511a09a451a9a",
}
"""The first 16 hexadecimal digits of the SHA-256 of each verifier's source."""


def compares_only(row: JsonObject) -> bool:
    """Return whether the verifier of a row's family may read a text here; raise StepError if the row has no family."""
    try:
        family = origin_of(row)["family"]
        return family_compares_only(family)
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(f"row {row['id']}: metadata does not say how reasoning-gym made the problem") from error


@lru_cache(maxsize=256)
def family_compares_only(family: str) -> bool:
    """Return whether the installed verifier of a family is in COMPARE_ONLY; raise KeyError for an unknown family."""
    import reasoning_gym  # noqa: F401 (fills the table)
    from reasoning_gym.factory import DATASETS

    function = DATASETS[family][0].score_answer
    name = f"{function.__module__}:{function.__qualname__}"
    return name in COMPARE_ONLY and digest_of(function) == COMPARE_ONLY[name]


def digest_of(function: Any) -> str:
    """Return the digest of a function's source; `unread` if the source is not available."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return "unread"
