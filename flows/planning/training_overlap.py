"""A look before a run at rows from outside that are trained on: whether they ask problems of an evaluation."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from flows.planning.data_sources import read_outside_rows
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import PosttrainError, Problem
from schemas.recipe.load import Recipe
from schemas.references import TABLE_TYPES
from schemas.stages.curate import Curate
from schemas.stages.data import Data
from schemas.steps.step_info import Port
from schemas.steps.training_rows import EVALUATIONS
from schemas.training import Training

if TYPE_CHECKING:
    from learning.data.rows import Row

LOOKED_AT = 2000
"""Rows of a source, and problems of an evaluation, that are compared before a run; evaluations compare all."""
ADVICE = "leave them out: `contaminated_rows: drop`; refuse them: `stop`; they are meant to be there: `allow`"
WORDS = re.compile(r"\w+|[^\w\s]")


def find_overlaps(recipe: Recipe, layout: Layout) -> Iterator[tuple[bool, Problem]]:
    """Yield a problem per training stage and evaluation that share prompts, and whether it refuses the recipe.

    Rows are compared by their words, in every turn of the user. Only rows from outside are known before a run.
    """
    evaluations = [
        (name, port)
        for name, info in recipe.steps.items()
        if isinstance(info.stage, EVALUATIONS)
        for port in info.ports
        if port.path in ("prompts", "data")
    ]
    asked: dict[str, dict[str, str]] = {}
    for info in recipe.steps.values() if evaluations else ():
        stage = info.stage
        if not isinstance(stage, Training) or stage.contaminated_rows in ("allow", "drop"):
            continue
        port = next(port for port in info.ports if port.path == stage.data_port)
        rows = _read_rows(recipe, layout, port, decontaminated=stage.contaminated_rows == "stop")
        for name, given in evaluations if rows else ():
            if name not in asked:
                problems = reversed(_read_rows(recipe, layout, given, decontaminated=True))
                asked[name] = {text: row["id"] for row in problems for text in _list_questions(row)[-1:]}
            matches = (
                (row["id"], next((asked[name][text] for text in _list_questions(row) if text in asked[name]), None))
                for row in rows
            )
            if hits := [(row, problem) for row, problem in matches if problem is not None]:
                problem = info.problem(port.path, _describe(name, hits, len(rows)), ADVICE)
                yield stage.contaminated_rows == "stop", problem


def _describe(evaluation: str, hits: list[tuple[str, str]], size: int) -> str:
    row, problem = hits[0]
    many, first = len(hits) > 1, "the first " if size >= LOOKED_AT else ""
    return (
        f"{len(hits)} of {first}{size} rows {'ask problems' if many else 'asks a problem'} of `{evaluation}` "
        f"({'first: ' if many else ''}{row} asks {problem})"
    )


def _read_rows(recipe: Recipe, layout: Layout, port: Port, *, decontaminated: bool) -> list["Row"]:
    """Return the first rows from outside that reach a port; through curations that decontaminate only if asked to."""
    if port.source is not None:
        return _read_table(recipe, layout, port.source, port.type) if port.type in TABLE_TYPES else []
    rows: list[Row] = []
    for name in port.steps:
        stage = recipe.stages[name]
        if isinstance(stage, Data):
            rows += read_outside_rows(recipe, layout, name, LOOKED_AT)
        if isinstance(stage, Data) or (isinstance(stage, Curate) and (decontaminated or not stage.decontaminate)):
            for given in recipe.ports(name):
                if given.steps and (given.path == "data" or given.path.endswith(".from")):
                    rows += _read_rows(recipe, layout, given, decontaminated=decontaminated)
    return rows[:LOOKED_AT]


def _read_table(recipe: Recipe, layout: Layout, reference: str, kind: str) -> list["Row"]:
    """Return the first rows of a folder with posttrain's own; none if it cannot be read, which its step reports."""
    from learning.data.messages import unpack_rows  # pyarrow takes 0.1 s, and most recipes have no sources
    from learning.data.rows import scan_rows

    try:
        batches = scan_rows(find_source(reference, layout, recipe.folders).folder, kind, columns=["id", "prompt"])
        return list(islice((row for batch in batches for row in unpack_rows(batch)), LOOKED_AT))
    except PosttrainError:
        return []


def _list_questions(row: "Row") -> list[str]:
    """Return the words of each turn of the user in a prompt."""
    texts = [turn["content"] or "" for turn in row["prompt"] if turn["role"] == "user"]
    return [words for text in texts if (words := " ".join(WORDS.findall(unicodedata.normalize("NFC", text.lower()))))]
