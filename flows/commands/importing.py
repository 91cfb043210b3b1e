"""The command that turns configurations of other tools into recipes."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, console, warn
from schemas.errors import PlanError, RecipeError


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Configuration; later files are put on top.")],
    tool: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TOOL",
            help="axolotl, llama-factory, trl[:TRAINER], oumi, verl, ...; default: recognised.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RECIPE", help="Recipe to write.")] = Path("recipe.yaml"),
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, help="Devices of the original training, for its batch size; default: as its launcher says."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a recipe that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a recipe from a configuration of another tool, and say what became of every key.

    Reads axolotl, LLaMA-Factory, TRL, oumi, verl, open-instruct, mergekit and lm-eval: YAML, JSON, shell scripts.
    """
    from schemas.importers.convert import import_config

    if out.exists() and not force:
        raise PlanError(f"{out} is there already; give another name with --out, or --force")
    made = import_config(files, tool, out, devices)
    out.write_text(made.text, encoding="utf-8")
    problems = _find_problems(out)
    if as_json:
        keys = [entry.to_json() for entry in made.entries]
        print(
            json.dumps(
                {"tool": made.tool.name, "recipe": str(out), "keys": keys, "problems": problems}, indent=1, default=str
            )
        )
    else:
        _print_report(made.tool.title, made.entries, out)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        warn(f"{out} does not validate yet: correct it as these lines say")
        raise typer.Exit(3)


def _find_problems(recipe: Path) -> list[str]:
    """Return what is wrong with the recipe that was written."""
    from schemas.recipe.load import load_recipe

    try:
        load_recipe(recipe)
    except RecipeError as error:
        return [str(problem) for problem in error.problems]
    return []


def _print_report(title: str, entries: tuple, out: Path) -> None:
    """Print a table of keys, what needs attention last."""
    from rich.table import Table
    from rich.text import Text

    from schemas.importers.common.leaves import show
    from schemas.importers.common.report import STATUSES, describe_counts

    table = Table("key", "value", "", "")
    ranks = {status: rank for rank, status in enumerate(STATUSES)}
    for entry in sorted(entries, key=lambda entry: ranks[entry.status]):
        value = show(entry.value) if entry.given else ""
        table.add_row(Text(entry.key), Text(value), Text(entry.status), Text(entry.note))
    console.print(table)
    print(f"{title}: {describe_counts(entries)}")
    print(f"wrote {out}; next: posttrain validate {out}")
