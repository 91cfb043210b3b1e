"""The door to reasoning-gym: imported only when a problem is made or scored, because that takes a second."""

import json
from functools import lru_cache
from typing import Any

from schemas.errors import StepError

BLOCK = 500
"""Problems per seed."""


def families() -> list[str]:
    """Names of all families."""
    import reasoning_gym  # noqa: F401 (fills the table)
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


@lru_cache(maxsize=64)
def dataset(family: str, config: str, seed: int) -> Any:
    """A block of problems; `config` is JSON. Raises StepError for what the family does not take."""
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(family, seed=seed, size=BLOCK, **json.loads(config))
    except (AssertionError, TypeError, ValueError) as error:
        raise StepError(f"reasoning_gym {family}: config {config}: {error}") from error


def entry_of(row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The block and the entry that a prompts row was made of; raises StepError when it was made otherwise."""
    try:
        origin = json.loads(row["metadata"] or "")
        source = dataset(origin["family"], json.dumps(origin["config"], sort_keys=True), origin["seed"])
        entry = source[origin["index"]]
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(f"row {row['id']}: metadata does not say how reasoning-gym made the problem") from error
    if row["answer"] is not None and str(entry["answer"]) != row["answer"]:
        raise StepError(f"row {row['id']}: the installed reasoning-gym makes another problem; generate the data again")
    return source, entry
