"""A look at the data sources of a plan before it runs: whether they exist, their format, and rows that do not fit."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.layout import Layout
from schemas.errors import PlanError, PosttrainError, Problem, StepError, printable
from schemas.plan import Plan
from schemas.recipe.load import Recipe
from schemas.row_formats import Emit
from schemas.stages.data import Data, Source

if TYPE_CHECKING:
    from learning.data.rows import Row
    from learning.data.sources.look import Look

SHOWN = 5
"""Rows that do not fit, in one message."""
UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


@dataclass(frozen=True)
class SeenSource:
    """A source of a step from outside, and what a look at it shows."""

    step: str
    reference: str
    source: Source
    look: "Look"


def look_at_sources(plan: Plan, layout: Layout, examples: int = 0) -> list[SeenSource]:
    """Return what every source from outside shows. Raise PlanError if one cannot be read, or rows do not fit."""
    folders = tuple(dict.fromkeys((Path(plan.file).resolve().parent, Path.cwd(), layout.root)))
    seen = []
    for step in plan.steps:
        if step.kind == "data":
            references = {given.port: given.source for given in step.inputs if given.source is not None}
            seen += _look(step.name, Data.model_validate(step.settings), references, layout, folders, examples)
    return seen


def find_source_problems(recipe: Recipe, layout: Layout) -> Iterator[Problem]:
    """Yield a problem per source from outside of a recipe that cannot be read, or whose first rows do not fit."""
    for name, stage in recipe.stages.items():
        if not isinstance(stage, Data):
            continue
        references = {port.path: port.source for port in recipe.ports(name) if port.source is not None}
        for index, source in enumerate(stage.sources):
            port = f"sources.{index}.from"
            tables = _find_tables(source, index, references)
            if port in references and tables is not None:
                try:
                    _look_once(name, source, references[port], tables, stage.emit, layout, recipe.folders, 0)
                except PosttrainError as error:
                    at = port if source.query is None else f"sources.{index}.query"
                    yield recipe.problem(name, at, str(error).removeprefix(f"{name}: "))


def read_first_rows(recipe: Recipe, layout: Layout, step: str, size: int) -> list["Row"]:
    """Return the first rows of a `data` step as it converts them, from its first source from outside.

    Raise PlanError if it cannot be read, or rows do not fit.
    """
    stage = recipe.stages[step]
    references = {port.path: port.source for port in recipe.ports(step) if port.source is not None}
    seen = _look(step, stage, references, layout, recipe.folders, size) if isinstance(stage, Data) else iter(())
    return [row for one in islice(seen, 1) for row in one.look.examples]


def read_outside_rows(recipe: Recipe, layout: Layout, step: str, size: int) -> list["Row"]:
    """Return the first rows of a `data` step's sources from outside; none of those that cannot be read."""
    from learning.data.sources.look import read_first_rows  # pyarrow takes 0.1 s, and most recipes have no sources
    from lineage.sources.resolve import find_source

    stage = recipe.stages[step]
    references = {port.path: port.source for port in recipe.ports(step) if port.source is not None}
    rows: list[Row] = []
    assert isinstance(stage, Data)
    for index, source in enumerate(stage.sources):
        tables = _find_tables(source, index, references)
        if (reference := references.get(f"sources.{index}.from")) is not None and tables is not None:
            with suppress(PosttrainError):  # `find_source_problems` says why
                folder = find_source(reference, layout, recipe.folders).folder
                others = {name: find_source(table, layout, recipe.folders).folder for name, table in tables.items()}
                rows += read_first_rows(folder, source, stage.emit, size, others)
    return rows


def _look(
    step: str, stage: Data, references: Mapping[str, str], layout: Layout, folders: tuple[Path, ...], examples: int
) -> Iterator[SeenSource]:
    for index, source in enumerate(stage.sources):
        tables = _find_tables(source, index, references)
        if (reference := references.get(f"sources.{index}.from")) is not None and tables is not None:
            yield _look_once(step, source, reference, tables, stage.emit, layout, folders, examples)


def _find_tables(source: Source, index: int, references: Mapping[str, str]) -> dict[str, str] | None:
    """Return the references of a query's other tables by name; None if a stage is yet to make one."""
    ports = {name: f"sources.{index}.tables.{name}" for name in source.tables}
    return (
        {name: references[port] for name, port in ports.items()} if set(ports.values()) <= references.keys() else None
    )


def _look_once(
    step: str,
    source: Source,
    reference: str,
    tables: Mapping[str, str],
    emit: Emit,
    layout: Layout,
    folders: tuple[Path, ...],
    examples: int,
) -> SeenSource:
    from learning.data.sources.look import look_at_source  # pyarrow takes 0.1 s, and most recipes have no sources
    from lineage.sources.resolve import find_source  # the store, which `validate` needs for sources only

    folder = find_source(reference, layout, folders).folder
    others = {name: find_source(table, layout, folders).folder for name, table in tables.items()}
    try:
        look = look_at_source(folder, source, emit, examples, others)
    except StepError as error:
        raise PlanError(f"{step}: {reference}: {error}") from error
    if look.bad and source.on_bad_row == "stop":
        raise PlanError(f"{step}: {reference}: {_describe_bad(look.bad)}")
    return SeenSource(step, reference, source, look)


def _describe_bad(bad: tuple[str, ...]) -> str:
    lines = "".join(f"\n    {line}" for line in bad[:SHOWN])
    more = f"\n    and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    advice = "correct them, or set `on_bad_row: drop` or `quarantine`"
    return f"{len(bad)} of the first rows {'do' if len(bad) > 1 else 'does'} not fit; {advice}:{lines}{more}"


def describe_sources(seen: list[SeenSource]) -> list[str]:
    """Return one line per source: format, files, rows, and how many of the first rows do not fit."""
    return [f"{one.step} reads {one.reference}: {_describe_look(one)}" for one in seen]


def _describe_look(one: SeenSource) -> str:
    look = one.look
    format_from = "" if one.source.format else " (detected)"
    rows = "" if look.rows is None else f", {look.rows:,} rows"
    bad = f"; {len(look.bad)} of the first rows do not fit: {one.source.on_bad_row}" if look.bad else ""
    files = f"{look.files:,} file{'' if look.files == 1 else 's'}"
    return f"{look.format}{format_from}, {files}, {_format_size(look.size)}{rows}{bad}"


def _format_size(size: int) -> str:
    return next((f"{size / unit:.1f} {name}" for unit, name in UNITS if size >= unit), f"{size} bytes")


def show_examples(seen: list[SeenSource]) -> Iterator[str]:
    """Yield the lines of the converted examples of every source."""
    from learning.data.sources.look import describe_row  # pyarrow takes 0.1 s, and most recipes have no sources

    for one in seen:
        for row in one.look.examples:
            yield f"{one.step}: " + "\n".join(printable(line) for line in describe_row(row))
