"""kind: data — rows of files, of the hub and of other stages, as posttrain's own rows."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic_core import CoreSchema

from schemas.base import Schema
from schemas.data_slices import parse_split
from schemas.expectations import Expectations
from schemas.references import DataRef
from schemas.row_formats import EMITS, ROWS, Emit, Format
from schemas.row_templates import is_template, parse_template
from schemas.stages.base import BaseStage, ReportSection

TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")
"""Names of tables."""


class Source(Schema):
    """Rows of one source. A text alone is its reference: `path:chats.jsonl` for `{from: path:chats.jsonl}`."""

    from_: DataRef = Field(alias="from")
    """A file, a folder or a pattern (`path:chats/*.jsonl`) of JSONL, JSON, CSV, TSV, Parquet, Arrow or text files, also
    compressed (`.gz`, `.zst`), `hub:org/name@revision`, or a stage that makes rows."""
    subset: str | None = Field(default=None, min_length=1)
    """Subset of a data set with several: a name in its README, or a folder; null: the default or only one."""
    split: str | None = Field(default=None, min_length=1)
    """Split of a data set with several: `train`, `validation`, …, or a slice of it: `train[:5%]`, `test[100:200]`,
    `[-1000:]`; null: `train`, or the only one."""
    query: str | None = Field(default=None, min_length=1)
    """SQL for DuckDB that makes the rows from the table `rows`, those of the files, and from `tables`:
    `select question as prompt, answer from rows join answers using (id) where score::float > 3`."""
    tables: dict[str, DataRef] = {}
    """Other tables of `query` to their files, folders or stages: `{answers: path:answers.csv}`."""
    format: Format | None = None
    """Format of the rows; null: detected from the columns of the first rows."""
    columns: dict[str, str] = {}
    """Field of the format to the column that holds it, or a template over columns:
    `{prompt: "{question}\\n{context}", completion: answer}`."""
    ratings: dict[str, float] = {}
    """Columns of ratings to their weights, for one response per row as in HelpSteer: of the responses of a prompt,
    which follow each other, the one with the highest weighted sum is chosen and the one with the lowest rejected."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Name of the source in curves and reports; null: that of its only file, or `source1`, `source2`, …"""
    weight: float | None = Field(default=None, gt=0)
    """Share of the source in the mixture, relative to the other weights; all sources have one, or none."""
    during: tuple[float, float] | None = None
    """Part of the mixture that has rows of the source, as shares from 0 to 1: `[0, 0.5]` is its first half. The rows
    have an order then, which a stage with `shuffle: false` follows: a curriculum. Null: all of it."""
    max_rows: int | None = Field(default=None, ge=1)
    """Most rows of the source, drawn at random with the stage's seed; null: all."""
    repeat: int = Field(default=1, ge=1, le=1000)
    """How often the rows are in the mixture."""
    on_bad_row: Literal["stop", "drop", "quarantine"] = "stop"
    """What happens with a row that does not fit: the step fails with file, row and reason; the row is dropped and
    counted; or it is also written to `quarantine.jsonl` of the output `report`."""

    @model_validator(mode="before")
    @classmethod
    def accept_reference(cls, value: Any) -> Any:
        """Accept `path:x` for `{from: path:x}`."""
        return {"from": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict:
        """Accept a reference in editors, too."""
        return {"anyOf": [handler(schema), {"type": "string", "minLength": 1}]}

    @field_validator("split")
    @classmethod
    def refuse_bad_splits(cls, split: str | None) -> str | None:
        """Refuse what is neither a name nor a slice."""
        if split is not None:
            parse_split(split)
        return split

    @field_validator("columns")
    @classmethod
    def refuse_bad_templates(cls, columns: dict[str, str]) -> dict[str, str]:
        """Refuse templates with anything but names of columns in braces."""
        for text in columns.values():
            if is_template(text):
                parse_template(text)
        return columns

    @field_validator("tables")
    @classmethod
    def refuse_bad_tables(cls, tables: dict[str, DataRef]) -> dict[str, DataRef]:
        """Refuse names of tables that SQL would have to quote, and the one of the source itself."""
        for name in tables:
            if not TABLE.fullmatch(name):
                raise ValueError(f"`{name}` is no name of a table; use lower-case letters, digits and _")
            if name == ROWS:
                raise ValueError(f"`{ROWS}` is the table of `from`; choose another name")
        return tables

    @field_validator("during")
    @classmethod
    def refuse_wrong_parts(cls, during: tuple[float, float] | None) -> tuple[float, float] | None:
        """Refuse bounds that are not two shares in order."""
        if during is not None and not 0 <= during[0] < during[1] <= 1:
            raise ValueError("must be two shares in order, such as [0, 0.5]")
        return during

    @model_validator(mode="after")
    def refuse_slices_of_queries(self) -> Self:
        """Refuse a slice of the files of a query, which says itself what it reads."""
        if self.query is not None and self.split is not None and parse_split(self.split)[1] is not None:
            raise ValueError("split: a query reads all rows of its files; write `limit` and `offset` in the `query`")
        return self

    @model_validator(mode="after")
    def refuse_unread_tables(self) -> Self:
        """Refuse tables without a query."""
        if self.tables and self.query is None:
            raise ValueError("tables: are read by a `query` only; write one, or list the files as sources")
        return self

    @model_validator(mode="after")
    def refuse_ratings_of_other_formats(self) -> Self:
        """Refuse weights of ratings with another format, and the format without weights."""
        if self.ratings and self.format not in (None, "ratings"):
            raise ValueError(f"ratings: rows of format {self.format} have none that are read; remove one of the two")
        if self.format == "ratings" and not self.ratings:
            raise ValueError("format: ratings needs their weights: `ratings: {helpfulness: 1.0}`")
        return self


class Data(Expectations, BaseStage):
    """Convert rows of any source and format into typed rows; every other kind can use them by the stage's name.

    `data: path:chats.jsonl` in a stage that trains is short for such a stage (docs/data-sources.md).
    """

    single_keys: ClassVar = frozenset({"sources"})
    drops_rows: ClassVar = True
    report_section: ClassVar = ReportSection(detail="sources")
    shares_tokens: ClassVar = False

    kind: Literal["data"]
    sources: list[Source] = Field(min_length=1)
    """Where the rows come from. A single source needs no brackets."""
    emit: Emit = "chat"
    """Artifact type of the rows."""

    temperature: float | None = Field(default=None, ge=1)
    """Shares of the sources are proportional to their rows to the power of 1 / temperature: 1 keeps the proportions, a
    high one makes them equal; instead of weights."""
    max_rows: int | None = Field(default=None, ge=1)
    """Rows of the mixture; null: all rows, or with weights or a temperature as many as their shares allow without
    repeating a row."""

    @model_validator(mode="after")
    def refuse_mixed_shares(self) -> Self:
        """Refuse weights for some sources only, weights with a temperature, and names that are given twice."""
        weights = [source.weight for source in self.sources]
        if any(weight is None for weight in weights) and any(weight is not None for weight in weights):
            raise ValueError("sources: give every source a `weight`, or none")
        if weights[0] is not None and self.temperature is not None:
            raise ValueError("temperature: the sources have weights; remove one of the two")
        names = [source.name for source in self.sources if source.name is not None]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"sources: two are called `{twice}`; rename one")
        return self

    @model_validator(mode="after")
    def refuse_gaps(self) -> Self:
        """Refuse `during` without weights, and parts of the mixture in which no source has rows."""
        parts = sorted(source.during or (0.0, 1.0) for source in self.sources)
        if all(source.during is None for source in self.sources):
            return self
        if self.sources[0].weight is None:
            raise ValueError("during: give every source a `weight`; sources share each part of the mixture by weight")
        reached = 0.0
        for start, end in [*parts, (1.0, 1.0)]:
            if start > reached:
                raise ValueError(f"during: no source has rows from {reached:g} to {start:g} of the mixture")
            reached = max(reached, end)
        return self

    @model_validator(mode="after")
    def refuse_unfit_formats(self) -> Self:
        """Refuse formats whose rows cannot become the artifact type."""
        for source in self.sources:
            if source.ratings and self.emit != "preference_pairs":
                raise ValueError(f"ratings: make preference pairs, not {self.emit}")
            if source.format is not None and self.emit not in EMITS[source.format]:
                fitting = ", ".join(name for name, types in EMITS.items() if self.emit in types)
                raise ValueError(
                    f"rows of format {source.format} cannot become {self.emit}; formats that can: {fitting}"
                )
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the rows, and the report on rows that were dropped."""
        return {"data": self.emit, "report": "directory"}
