"""Access to reasoning-gym, which is imported only when a problem is generated or scored: the import takes a second."""

import json
import math
from functools import lru_cache
from typing import Any

from learning.reasoning_gym.grammar import means_no_number
from schemas.base import JsonObject
from schemas.errors import StepError

BLOCK = 500
"""Problems per seed."""


def families() -> list[str]:
    """Return the names of all families."""
    import reasoning_gym  # noqa: F401 (fills the table)
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


@lru_cache(maxsize=64)
def dataset(family: str, config: str, seed: int) -> Any:
    """Return a block of problems; `config` is JSON. Raise StepError if the family rejects it."""
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(family, seed=seed, size=BLOCK, **json.loads(config))
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise StepError(f"reasoning_gym {family}: config {config}: {error}") from error


def entry_of(row: JsonObject) -> tuple[Any, JsonObject]:
    """Return the block and the entry that a row was generated from; raise StepError if they cannot be reproduced."""
    try:
        origin = origin_of(row)
        source = dataset(origin["family"], json.dumps(origin["config"], sort_keys=True), origin["seed"])
        entry = source[origin["index"]]
    except (LookupError, TypeError, ValueError) as error:
        raise StepError(f"row {row['id']}: metadata does not say how reasoning-gym made the problem") from error
    if row["answer"] is not None and str(entry["answer"]) != row["answer"]:
        raise StepError(
            f"row {row['id']}: the installed reasoning-gym makes another problem; generate the data again (outside of "
            "a run with PYTHONHASHSEED=0, because some families go by the order of a set)"
        )
    return source, entry


def origin_of(row: JsonObject) -> JsonObject:
    """Return family, config, seed and index of a row's problem; raise ValueError or TypeError without an object."""
    origin = json.loads(row["metadata"] or "")
    if not isinstance(origin, dict):
        raise TypeError("no origin")
    return origin


def score_of(source: Any, entry: JsonObject, text: str) -> float:
    """Return the score of an answer by the family's verifier; raise ValueError if it is not a number from 0 to 1.

    Verifiers may raise any exception. Only a process that is allowed to read the text may call this function: see
    `learning.reasoning_gym.verifiers`.
    """
    if means_no_number(entry["metadata"].get("source_dataset"), text):
        return 0.0
    score = source.score_answer(text, entry)
    if isinstance(score, str | bytes) or not math.isfinite(number := float(score)) or not 0 <= number <= 1:
        raise ValueError("no score")
    return number
