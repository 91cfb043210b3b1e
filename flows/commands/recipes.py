"""The table of `posttrain ls`."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from schemas.errors import RecipeError, printable
from schemas.recipe.load import load_recipe
from schemas.schedule import Schedule
from schemas.source.parser import read_source


def make_recipe_table(folder: Path) -> Table:
    """Return a table of the recipes in a folder, with their descriptions and schedules."""
    table = Table("recipe", "stages", "description", "runs by itself once deployed")
    for path in sorted(folder.glob("*.yaml")):
        try:
            content = read_source(path)
        except RecipeError as error:
            table.add_row(Text(str(path)), "", Text(error.problems[0].message, style="red"), "")
            continue
        if (stages := content.get("stages")) is not None:
            due = describe_due_times(_read_schedule(path)) if content.get("schedule") is not None else None
            description = content.get("description")
            words = Text(printable(str(description.plain())) if description else "")
            table.add_row(Text(str(path)), str(len(stages.value)) if stages.is_map else "", words, Text(due or ""))
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
