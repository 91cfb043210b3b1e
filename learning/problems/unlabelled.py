"""Problems whose answers nobody knows."""

from typing import Any

from schemas.use import ProblemsUse


def unlabelled(*, of: ProblemsUse) -> list[dict[str, Any]]:
    """The problems of another generator without their answers; what could tell the answer (metadata) goes too."""
    return [row | {"answer": None, "metadata": None} for row in of()]
