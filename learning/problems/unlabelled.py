"""Problems without answers."""

from typing import Any

from schemas.use import ProblemsUse


def unlabelled(*, of: ProblemsUse) -> list[dict[str, Any]]:
    """Remove the answers, and the metadata that may reveal them, from the problems of another generator."""
    return [row | {"answer": None, "metadata": None} for row in of()]
