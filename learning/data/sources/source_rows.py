"""The rows of one source, converted one after the other; what does not fit goes to the dropped rows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from learning.data.rows import Row
from learning.data.sources.columns import list_columns, make_mapping
from learning.data.sources.dropped import DroppedRows
from learning.data.sources.files import list_data_files
from learning.data.sources.formats import READERS, convert_row, detect_format
from learning.data.sources.query import read_query
from learning.data.sources.ratings import group_by_prompt
from learning.data.sources.readers import read_records
from learning.data.sources.records import BadRow, Record
from schemas.errors import StepError
from schemas.row_formats import EMITS, ROWS, Emit, Format
from schemas.stages.data import Source

UNSUPPORTED = {
    frozenset({"prompt", "completions", "labels"}): "labels of steps (process reward models)",
}
"""Columns by which formats without a stage are recognised, so that their labels are not ignored in silence."""
RATED = frozenset({"prompt", "response", "helpfulness"})
"""Columns of HelpSteer, whose ratings need weights."""
LABELLED = frozenset({"prompt", "completion", "label"})
"""Columns of the format `labels`, of which half of the completions may be bad ones."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
LOOKED_AT = 100
"""Rows whose columns decide the format."""


@dataclass
class SourceRows:
    """Rows of one source; `read` counts what its files hold, `kept` what was converted."""

    folder: Path
    source: Source
    emit: Emit
    tables: Mapping[str, Path] = field(default_factory=dict)
    """Folders of the other tables of a query, by name."""
    work: Path | None = None
    """Folder for what a query spills; None: the system's for temporary files."""
    read: int = 0
    kept: int = 0

    def __post_init__(self) -> None:
        self.files = list_data_files(self.folder, self.source.subset, self.source.split)
        self.map_columns = make_mapping(self.source.columns)
        self.format: Format = self.source.format or ("ratings" if self.source.ratings else self._detect_format())

    @property
    def stem(self) -> str | None:
        """Return the name of the only file without suffixes; None for several files, and for a table of a stage."""
        name = self.files[0].name.split(".")[0]
        return name if len(self.files) == 1 and name != "rows" and NAME.fullmatch(name) else None

    def records(self) -> Iterator[Record]:
        """Yield the rows of all files as they are written, or those of the query over them."""
        if self.source.query is not None:
            others = {name: list_data_files(folder) for name, folder in self.tables.items()}
            yield from read_query(self.source.query, {ROWS: self.files, **others}, self.work)
            return
        for path in self.files:
            yield from read_records(path, path.relative_to(self.folder).as_posix())

    def rows(self) -> Iterator[Record]:
        """Yield what becomes a row each: the rows of all files, or the rated responses of one prompt together."""
        if self.format == "ratings":
            return group_by_prompt(self.records(), self.map_columns, self.source.ratings)
        return self.records()

    def convert_record(self, record: Record) -> Row:
        """Return a row of `rows` converted. Raise BadRow."""
        fields = record.values if self.format == "ratings" else self.map_columns(record.values)
        return convert_row(READERS[self.format], fields, f"{record.file}:{record.number}", self.emit)

    def convert(self, dropped: DroppedRows, before: int = 0) -> Iterator[tuple[Record, Row]]:
        """Yield every row that fits, with what is written of it; `before` rows of other sources were read already."""
        on_bad_row = self.source.on_bad_row
        for record in self.rows():
            number = before + self.read
            self.read += 1
            if record.problem:
                dropped.add(record, number, "unreadable", record.problem, on_bad_row)
                continue
            try:
                row = self.convert_record(record)
            except BadRow as error:
                dropped.add(record, number, "does not fit", str(error), on_bad_row)
                continue
            self.kept += 1
            yield record, row

    def _detect_format(self) -> Format:
        """Return the format of the first rows. Raise StepError, naming their columns, if there is none."""
        columns: dict[str, object] = {}
        first = None
        for record in islice(self.records(), LOOKED_AT):
            first = first or record
            columns |= dict.fromkeys(self.source.columns if record.values else ())
            columns |= {name: value for name, value in record.values.items() if value is not None}
        if first is None:
            raise StepError(f"{self.files[0].name if self.source.query is None else 'query'}: no rows")
        if not columns:
            raise StepError(f"{first.place}: {first.problem or 'no columns'}; none of the first rows can be read")
        for marks, what in UNSUPPORTED.items():
            if marks <= columns.keys():
                raise StepError(
                    f"{first.file}: columns {list_columns(columns)} are {what}, which no stage trains on yet; to use "
                    "the rows in another way, name the `format` or map `columns`"
                )
        if columns.keys() >= RATED and detect_format(set(columns), self.emit) is None:
            raise StepError(
                f"{first.file}: columns {list_columns(columns)} are ratings per attribute; give their weights, as "
                "`ratings: {helpfulness: 1.0}`, to make pairs of the responses of a prompt"
            )
        if columns.keys() >= LABELLED and self.emit != "preference_pairs":
            raise StepError(
                f"{first.file}: columns {list_columns(columns)} are completions with labels, good and bad ones; train "
                "on them with `kind: preference` and `loss: kto`, or name the `format`"
            )
        row_format = detect_format(set(columns), self.emit)
        if row_format is None:
            formats = "; ".join(
                f"{name} ({', '.join(READERS[name].needs) or 'messages'})"
                for name in READERS
                if self.emit in EMITS[name]
            )
            raise StepError(
                f"{first.file}: columns {list_columns(columns)} are those of no format whose rows can become "
                f"{self.emit}: {formats}; map them with `columns: {{prompt: COLUMN}}`, or name the `format`"
            )
        return row_format
