"""Rewards of itineraries."""

from learning.data.rows import Row
from learning.toy_tasks.trips import is_feasible, read_budget


def feasible(rows: list[Row], completions: list[str]) -> list[float | None]:
    """1 if the itinerary keeps its hours and the budget of the request, else 0; prices count as they are written."""
    return [float(is_feasible(text, read_budget(row))) for row, text in zip(rows, completions, strict=True)]
