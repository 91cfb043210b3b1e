"""The rows of one source, converted one after the other; what does not fit goes to the dropped rows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from learning.data.rows import Row
from learning.data.sources.columns import list_columns, make_mapping, suggest_mapping
from learning.data.sources.dropped import DroppedRows
from learning.data.sources.files import list_data_files, require_present
from learning.data.sources.formats import READERS, convert_row, detect_format
from learning.data.sources.query import read_query
from learning.data.sources.ratings import group_by_prompt
from learning.data.sources.readers import count_records, read_records
from learning.data.sources.records import BadRow, Record
from learning.data.sources.steps import expand_ratings
from schemas.data_slices import parse_split
from schemas.errors import StepError
from schemas.row_formats import EMITS, ROWS, Emit, Format
from schemas.stages.data import Source

STEPS = frozenset({"prompt", "completions", "labels"})
"""Columns of the format `steps`, some of which are wrong ones."""
RATED = frozenset({"prompt", "response", "helpfulness"})
"""Columns of HelpSteer, whose ratings need weights."""
LABELLED = frozenset({"prompt", "completion", "label"})
"""Columns of the format `labels`, of which half of the completions may be bad ones."""
USUAL: dict[Format, tuple[str, ...]] = {"messages": ("messages",), "steps": ("prompt", "completions", "labels")}
"""Columns of formats whose rows may have others in their place."""
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
    _count: int | None = None

    def __post_init__(self) -> None:
        split, self.slice = (None, None) if self.source.split is None else parse_split(self.source.split)
        self.files = list_data_files(self.folder, self.source.subset, split)
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
            tables = {ROWS: self.files, **{name: list_data_files(folder) for name, folder in self.tables.items()}}
            present = {name: [require_present(path, path.name) for path in paths] for name, paths in tables.items()}
            yield from read_query(self.source.query, present, self.work)
            return
        start, stop = self.find_bounds()
        yield from islice(self._read_files(), start, stop)

    def find_bounds(self) -> tuple[int, int | None]:
        """Return the number of the first row that is read of the files, and the one after the last; None: all."""
        if self.slice is None:
            return 0, None
        if not self.slice.needs_count:
            start, stop = self.slice.start or 0, self.slice.stop
            return start, None if stop is None else max(start, stop)
        if self._count is None:
            self._count = sum(count_records(require_present(path, path.name)) for path in self.files)
        return self.slice.resolve(self._count)

    def _read_files(self) -> Iterator[Record]:
        for path in self.files:
            name = path.relative_to(self.folder).as_posix()
            yield from read_records(require_present(path, name), name)

    def rows(self) -> Iterator[Record]:
        """Yield what becomes a row each: the rows of all files, or the rated responses of one prompt together."""
        if self.format == "ratings":
            return group_by_prompt(self.records(), self.map_columns, self.source.ratings)
        if self.format == "steps":
            return expand_ratings(self.records(), self.map_columns)
        return self.records()

    def convert_record(self, record: Record) -> Row:
        """Return a row of `rows` converted. Raise BadRow."""
        fields = record.values if self.format in ("ratings", "steps") else self.map_columns(record.values)
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
        named: dict[str, None] = {}
        first = None
        for record in islice(self.records(), LOOKED_AT):
            first = first or record
            named |= dict.fromkeys(record.values)
            columns |= dict.fromkeys(self.source.columns if record.values else ())
            columns |= {name: value for name, value in record.values.items() if value is not None}
        if first is None:
            where = "query" if self.source.query is not None else self.files[0].name
            raise StepError(f"{where}: no rows" + (f" in {self.source.split}" if self.slice else ""))
        if not columns:
            raise StepError(f"{first.place}: {first.problem or 'no columns'}; none of the first rows can be read")
        if columns.keys() >= STEPS and self.emit != "step_labels":
            raise StepError(
                f"{first.file}: columns {list_columns(columns)} are solutions with labels of steps, right and wrong "
                "ones; train on them with `kind: process_reward_model`, or name the `format`"
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
                f"{name} ({', '.join(READERS[name].needs or USUAL[name])})"
                for name in READERS
                if self.emit in EMITS[name]
            )
            if wrapped := next((key for key, value in first.values.items() if _is_list_of_rows(value)), None):
                raise StepError(
                    f"{first.file}: its rows are in the list `{wrapped}` of one object; write the list itself, or JSON "
                    f"Lines: jq -c '.{wrapped}[]' {first.file} > rows.jsonl"
                )
            empty = [name for name in named if name not in columns]
            nulls = f" (null in all of the first rows: {', '.join(empty)})" if empty else ""
            header = "; the first line of such a file names its columns" if ".csv" in first.file else ""
            raise StepError(
                f"{first.file}: columns {list_columns(columns)}{nulls} are those of no format whose rows can become "
                f"{self.emit}: {formats}; map them with `{suggest_mapping(columns, self.emit)}`, or name the "
                f"`format`{header}"
            )
        return row_format


def _is_list_of_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)
