"""The table of `posttrain ls`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from schemas.errors import RecipeError, printable
from schemas.recipe.load import load_recipe
from schemas.schedule import Schedule
from schemas.source.parser import read_source


@dataclass(frozen=True)
class RecipeRecord:
    """A recipe: its file, number of stages, description and due times; `error` says why it cannot be read."""

    file: str
    stages: int | None = None
    description: str = ""
    due: str = ""
    """When it runs by itself once deployed."""
    error: str = ""


def list_recipe_records(folder: Path) -> list[RecipeRecord]:
    """Return the recipes in a folder, by name; files without stages are parts that recipes extend."""
    records = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            content = read_source(path)
        except RecipeError as error:
            records.append(RecipeRecord(str(path), error=error.problems[0].message))
            continue
        if (stages := content.get("stages")) is not None:
            due = describe_due_times(_read_schedule(path)) if content.get("schedule") is not None else None
            description = content.get("description")
            words = printable(str(description.plain())) if description else ""
            records.append(RecipeRecord(str(path), len(stages.value) if stages.is_map else None, words, due or ""))
    return records


def make_recipe_table(records: Sequence[RecipeRecord]) -> Table:
    """Return a table of recipes with their descriptions and schedules."""
    table = Table("recipe", "stages", "description", "runs by itself once deployed")
    for record in records:
        text = Text(record.error, style="red") if record.error else Text(record.description)
        stages = "" if record.stages is None else str(record.stages)
        table.add_row(Text(record.file), stages, text, Text(record.due))
    return table


def _read_schedule(path: Path) -> Schedule | None:
    """Return the schedule of a recipe; None also if the recipe is not valid."""
    try:
        return load_recipe(path).head.schedule
    except RecipeError:
        return None


def describe_due_times(schedule: Schedule | None) -> str | None:
    """Return the due times of a recipe and the changes that it waits for, as text; None without a schedule."""
    if schedule is None:
        return None
    from flows.deployments.schedules import describe_schedule  # Prefect computes due times, and takes seconds to import

    return describe_schedule(schedule)
