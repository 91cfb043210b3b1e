"""The command line: `posttrain VERB`.

Exit codes: 0 ok, 1 a step failed, 2 a gate failed, 3 usage or validation. Heavy modules are imported by the verbs
that need them, so that `--help` and `validate` answer at once.
"""

import enum
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from schemas.errors import PosttrainError

app = typer.Typer(
    name="posttrain",
    help="Declared multi-stage post-training: YAML recipes, run on Prefect and Ray, remembered in MLflow and DVC.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Terminal(Console):
    """A console whose reader may leave: a run goes on when nobody reads its progress any more."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Where nobody has said how wide the output is, tables need not be squeezed into 80 columns.
console = Terminal(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe YAML.")]
Profile = Annotated[str | None, typer.Option("--profile", help="Apply a profile of the recipe (tiny, full, ...).")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="stages.x.y=v", help="Override a key; repeatable.")]
To = Annotated[list[str], typer.Option("--to", metavar="STAGE", help="Only this stage and what it needs; repeatable.")]


class ExecutorChoice(enum.StrEnum):
    """Where steps run."""

    ray = "ray"
    inprocess = "inprocess"


Executor = Annotated[ExecutorChoice, typer.Option(help="`inprocess` is for debugging: no Prefect, no Ray.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def validate(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipe YAMLs.")],
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006 — typer copies it
) -> None:
    """Check recipes: keys, values, slots, references, ports. Every error has file:line:column."""
    from schemas.recipe import load_recipe

    failures = []
    for path in recipes:
        try:
            recipe = load_recipe(path, profile=profile, overrides=overrides)
            for problem in recipe.warnings:
                _warn(str(problem))
            print(f"{path}: ok, {len(recipe.stages)} steps")
        except PosttrainError as error:
            failures.append(error)
            print(error, file=sys.stderr)
    if failures:
        raise typer.Exit(3)


@app.command()
def plan(
    recipe: RecipeFile,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    to: To = [],  # noqa: B006
    dvc: Annotated[bool, typer.Option("--dvc", help="Write dvc.yaml for this recipe as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run would do: HIT or MISS for every step, with the first thing that differs."""
    from flows.authoring import plan_table
    from flows.launch import plan_recipe
    from lineage.layout import Layout

    layout = Layout.find()
    made = plan_recipe(recipe, layout, profile=profile, overrides=overrides, to=to, warn=_warn)
    if dvc:
        from lineage.dvcfiles import write_pipeline

        write_pipeline(layout, made)
    if as_json:
        print(made.model_dump_json(indent=2))
    else:
        console.print(plan_table(made, layout))


@app.command()
def run(
    recipe: RecipeFile,
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
    to: To = [],  # noqa: B006
    executor: Executor = ExecutorChoice.ray,
) -> None:
    """Run a recipe. What is already there is not done again; Ctrl-C leaves a run that can be resumed."""
    from flows.launch import plan_recipe
    from flows.runs import start
    from lineage.layout import Layout

    layout = Layout.find()
    made = plan_recipe(recipe, layout, profile=profile, overrides=overrides, to=to, warn=_warn)
    raise typer.Exit(start(made, layout, executor.value, console))


@app.command()
def resume(
    run: Annotated[str | None, typer.Argument(help="A run; default: the latest.")] = None,
    executor: Executor = ExecutorChoice.ray,
) -> None:
    """Go on with a run that was interrupted or failed, exactly as it was planned."""
    from flows.runs import resume_run
    from lineage.layout import Layout

    raise typer.Exit(resume_run(run, Layout.find(), executor.value, console))


@app.command()
def status(run: Annotated[str | None, typer.Argument(help="A run; default: the latest.")] = None) -> None:
    """Show the state of every step of a run."""
    from flows.runs import status_table
    from lineage.layout import Layout

    console.print(status_table(run, Layout.find()))


@app.command()
def logs(
    step: Annotated[str, typer.Argument(help="A step of the run.")],
    run: Annotated[str | None, typer.Option(help="A run; default: the latest.")] = None,
) -> None:
    """Print what a step wrote."""
    from flows.runs import step_log
    from lineage.layout import Layout

    print(step_log(step, run, Layout.find()), end="")


@app.command()
def why(
    recipe: RecipeFile,
    step: Annotated[str, typer.Argument(help="A step of the recipe.")],
    profile: Profile = None,
    overrides: Overrides = [],  # noqa: B006
) -> None:
    """Say why a step would run again, field by field, or which run it comes from."""
    from flows.authoring import why_text
    from flows.launch import plan_recipe
    from lineage.layout import Layout

    layout = Layout.find()
    made = plan_recipe(recipe, layout, profile=profile, overrides=overrides)
    console.print(why_text(made, step, layout), highlight=False, markup=False, soft_wrap=True)


@app.command()
def report(run: Annotated[str | None, typer.Argument(help="A run; default: the latest.")] = None) -> None:
    """Write the run's HTML report again and print its path."""
    from flows.runs import rebuild_report
    from lineage.layout import Layout

    print(rebuild_report(run, Layout.find()))


@app.command()
def lineage(
    target: Annotated[
        str | None,
        typer.Argument(help="A step, key, digest, run, artifact folder, row id or source; default: all."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file again and compare.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where something comes from, up to the rows of data, and what it touched, down to every model."""
    from flows.audit import show_lineage, show_verification
    from lineage.layout import Layout

    show = show_verification if verify else show_lineage
    raise typer.Exit(show(target, Layout.find(), console, as_json))


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="A DuckDB query over steps, inputs, outputs, files, metrics, curves, ...")],
    as_json: AsJson = False,
) -> None:
    """Query manifests, curves, evaluations and trajectories with SQL."""
    from flows.audit import show_query
    from lineage.layout import Layout

    show_query(sql, Layout.find(), console, as_json)


@app.command()
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/recipes.md instead.")] = False,
) -> None:
    """Print the JSON Schema of recipes, for editors."""
    if markdown:
        from schemas.reference_page import reference_page

        print(reference_page(), end="")
    else:
        from schemas.editor_schema import editor_schema

        print(json.dumps(editor_schema(), indent=2))


@app.command(name="ls")
def list_recipes() -> None:
    """List the recipes of this checkout."""
    from flows.authoring import recipe_list
    from lineage.layout import Layout

    console.print(recipe_list(Layout.find().root / "recipes"))


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("recipe.yaml"),
) -> None:
    """Write a small recipe to start from."""
    from flows.authoring import write_starter

    write_starter(path)
    print(f"wrote {path}; next: posttrain validate {path}")


@app.command()
def doctor() -> None:
    """Say what this machine has and what is missing."""
    from flows.doctor import report_machine

    raise typer.Exit(report_machine(console))


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def main() -> None:
    """Entry point: every error on purpose becomes its message and exit code, never a traceback."""
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    try:
        code = app(standalone_mode=False, prog_name="posttrain") or 0  # typer.Exit arrives as its code
        sys.stdout.flush()
    except PosttrainError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except (BrokenPipeError, SystemExit):  # `posttrain query ... | head`: whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # those of steps are StepErrors: this is the state folder, or a file that was named
        print(f"{error.filename or 'posttrain'}: {error.strerror or error}", file=sys.stderr)
        code = 3
    except Exception as error:
        if not hasattr(error, "show"):
            raise
        error.show()  # a usage error says what it is
        code = 3
    sys.exit(code)


if __name__ == "__main__":
    main()
