"""Command-line options and the console that several commands share."""

import enum
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


class Terminal(Console):
    """A console whose pipe may be closed by its reader; the run continues without output."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# If the width of the output is unknown, tables are not squeezed into 80 columns. Names between colons, as in
# `path:two: 5 rows`, are no emoji.
console = Terminal(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140, emoji=False)


def choose_console(as_json: bool) -> Console:
    """Return where a command reports: to stderr with --json, whose output is JSON only."""
    return Terminal(stderr=True, width=console.width, emoji=False) if as_json else console


def warn(text: str) -> None:
    """Print a warning to stderr."""
    print(f"warning: {text}", file=sys.stderr)


RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe YAML.")]
Profile = Annotated[str | None, typer.Option("--profile", help="Apply a profile of the recipe (tiny, full, ...).")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="stages.x.y=v", help="Override a key; repeatable.")]
To = Annotated[list[str], typer.Option("--to", metavar="STAGE", help="Only this stage and what it needs; repeatable.")]
Start = Annotated[
    list[str],
    typer.Option("--from", metavar="STAGE", help="Start at this step; earlier artifacts must exist; repeatable."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run cached steps again; the earlier artifacts stay.")]


class ExecutorChoice(enum.StrEnum):
    """Where steps run."""

    ray = "ray"
    inprocess = "inprocess"


Executor = Annotated[ExecutorChoice, typer.Option(help="`inprocess` is for debugging: no Prefect, no Ray.")]
Locked = Annotated[
    bool, typer.Option("--locked", help="Refuse a recipe that differs from recipe.lock, and name the differences.")
]
Tiny = Annotated[bool, typer.Option("--tiny", help="Small models, few rows, few steps: the same graph, to try it.")]
StandIns = Annotated[
    bool,
    typer.Option(
        "--stand-ins",
        help="As --tiny, with made-up rows for data that are not here, and a local server for all.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
GpuMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="With --memory: memory of one GPU, such as 80GB.")]
PromptLength = Annotated[
    int | None, typer.Option(min=1, help="With --memory: tokens of the longest prompt; default: as the rows are.")
]
Examples = Annotated[
    int, typer.Option(min=0, help="Print so many rows of each source and step, with what has a loss between « and ».")
]
