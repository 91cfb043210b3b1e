"""Problems without answers."""

from learning.data.rows import Row
from learning.lookup import ProblemsFunction


def unlabelled(*, of: ProblemsFunction) -> list[Row]:
    """Remove the answers, and the metadata that may reveal them, from the problems of another generator."""
    return [row | {"answer": None, "metadata": None} for row in of()]
