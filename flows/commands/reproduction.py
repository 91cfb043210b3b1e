"""Commands to compare runs and to lock recipes."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, Overrides, Profile, RecipeFile, console, warn


def diff(
    before: Annotated[str, typer.Argument(metavar="RUN_A", help="A run, the start of its name, or latest~1.")],
    after: Annotated[str, typer.Argument(metavar="RUN_B", help="The other run; default: the latest.")] = "latest",
    as_json: AsJson = False,
) -> None:
    """Show the differences between two runs: recipe, data, code, environment, metrics, artifacts and cost."""
    from flows.history.diff import compare
    from flows.history.diff_view import render
    from flows.runs.lookup import find_run
    from lineage.layout import Layout

    layout = Layout.find()
    difference = compare(find_run(before, layout), find_run(after, layout), layout)
    if as_json:
        print(json.dumps(difference.as_json(), indent=1))
    else:
        console.print(render(difference))


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs, as for `diff`; the first is the base.")],
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("comparison.html"),
    as_json: AsJson = False,
) -> None:
    """Write a page that compares runs: settings that differ, evaluations with intervals, cost."""
    from flows.history.comparison import compare_runs, write_comparison
    from flows.runs.lookup import find_run
    from lineage.layout import Layout

    layout = Layout.find()
    content = compare_runs(layout, [find_run(run, layout) for run in runs])
    if as_json:  # instead of the page
        print(json.dumps(content, indent=1))
        return
    write_comparison(content, html)
    console.print(f"wrote {html}", highlight=False, markup=False, soft_wrap=True)


def lock(
    recipe: RecipeFile,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Write a recipe's lock, which pins what its results depend on, for `run --locked` and `plan --locked`."""
    from flows.planning.locking import lock_path, lock_recipe, read_lock
    from lineage.layout import Layout

    lines = list(lock_recipe(recipe, Layout.find(), profile=profile, overrides=overrides, warn=warn))
    if as_json:
        print(json.dumps({"file": str(lock_path(recipe)), **read_lock(lock_path(recipe))}, indent=1))
        return
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
