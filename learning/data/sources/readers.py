"""Rows of one file, read as a stream: JSON Lines, JSON, CSV, TSV, Parquet, Arrow and text."""

import csv
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from learning.data.messages import drop_nulls
from learning.data.shards import open_shard
from learning.data.sources.files import get_data_suffix, open_bytes
from learning.data.sources.json_stream import StrictParser, iterate_json
from learning.data.sources.records import LONGEST_ROW, Record
from schemas.errors import StepError

BATCH = 1024
"""Rows of Parquet and Arrow files that are decoded together."""
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
UTF16 = (b"\xff\xfe", b"\xfe\xff")
UTF32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
POINTER = b"version https://git-lfs.github.com/"
ZIP = b"PK\x03\x04"
OTHER_MARKS = (";", "\t", "|", ",")
"""What divides columns in files that are called CSV, or TSV, and are none."""
COMPRESSED_BY = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
"""Suffix of compressed files to how they begin."""
BOM = b"\xef\xbb\xbf"
LAST_COMMA = re.compile(rb",\s*[}\]]")


def read_records(path: Path, name: str) -> Iterator[Record]:
    """Yield the rows of a file called `name` in messages; what cannot be read of it has a reason.

    Raise StepError, naming the file and the row before, for a file that cannot be read any further.
    """
    last = 0
    try:
        for record in READERS[get_data_suffix(path)](path, name):
            last = record.number
            yield record
    except (StepError, GeneratorExit):
        raise
    except (*UNREADABLE, UnicodeDecodeError, csv.Error, ValueError) as error:
        quote = "; a quote is not closed" if "unexpected end" in str(error) else ""
        raise StepError(f"{name}: cannot be read after row {last}: {error}{quote}") from error


def count_records(path: Path) -> int:
    """Return the number of rows of a file, also those that cannot be read. Raise StepError as `read_records` does."""
    suffix = get_data_suffix(path)
    if path.suffix.lower() == ".parquet":
        with open_shard(path) as file:
            return file.metadata.num_rows
    if READERS[suffix] is not _read_lines:
        return sum(1 for _ in read_records(path, path.name))
    with open_bytes(path) as file:
        lines = 0
        while line := file.readline(LONGEST_ROW + 1):
            lines += len(line) > LONGEST_ROW or bool(line.removeprefix(BOM).strip())
            if len(line) > LONGEST_ROW:
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_ROW)
        return lines


def _read_lines(path: Path, name: str) -> Iterator[Record]:
    """Read JSON Lines; empty lines are no rows."""
    parser = StrictParser()
    with open_bytes(path) as file:
        number = 0
        while line := file.readline(LONGEST_ROW + 1):
            number += 1
            if number == 1:
                _refuse_other_content(line, name)
                line = line.removeprefix(BOM)
            if len(line) > LONGEST_ROW:
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_ROW)
                yield Record(name, number, problem=f"longer than {LONGEST_ROW >> 20} MiB")
            elif line.strip():
                yield _parse_line(parser, line, name, number)


def _parse_line(parser: StrictParser, line: bytes, name: str, number: int) -> Record:
    try:
        return make_record(parser.parse(line.decode()), name, number, parser.repeated)
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: {error.reason} at byte {error.start + 1}"
    except (ValueError, RecursionError) as error:
        problem = f"no JSON: {error}" if isinstance(error, ValueError) else "no JSON: nested too deeply"
        problem += _advise_on_line(line.strip())
    return Record(name, number, problem=problem, text=line.decode(errors="replace").rstrip("\r\n"))


def _advise_on_line(line: bytes) -> str:
    """Return what a line that is no JSON seems to be, and what to do; empty for other lines."""
    if line in (b"[", b"{"):
        return "; JSON Lines have one object in each line: call the file .json"
    if line.endswith(b"},"):
        return "; JSON Lines have no comma between objects"
    if line.startswith(b"{'"):
        return "; Python's quotes are no JSON: write the rows with json.dumps"
    if LAST_COMMA.search(line):
        return "; JSON has no comma before } or ]"
    if line.startswith((b"<", b"PAR1", b"PK")):
        return "; this is a page of the web or a binary file under another name"
    return ""


def make_record(value: Any, name: str, number: int, repeated: str | None = None) -> Record:
    """Return a JSON value as a row; only an object is one, and none of its objects may have a key twice."""
    if repeated is not None:
        return Record(name, number, problem=f"the key {repeated!r} is in an object twice", text=json.dumps(value))
    if isinstance(value, dict):
        return Record(name, number, value)
    return Record(name, number, problem=f"no JSON object but {type(value).__name__}", text=json.dumps(value))


def _refuse_other_content(start: bytes, name: str) -> None:
    """Raise StepError if a file of text begins like UTF-16, or like a file of another kind than its name says."""
    _refuse_pointer(start, name)
    if start.startswith(ZIP):
        raise StepError(f"{name}: a ZIP archive or a sheet of Excel; unpack it, or export the sheet as CSV")
    if start.startswith(UTF32):
        raise StepError(f"{name}: encoded as UTF-32; convert it to UTF-8: iconv -f UTF-32 -t UTF-8")
    if start.startswith(UTF16) or (len(start) > 3 and 0 in start[:2] and start[:4].count(0) == 2):
        raise StepError(f"{name}: encoded as UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8")
    for suffix, magic in COMPRESSED_BY.items():
        if start.startswith(magic):
            raise StepError(f"{name}: compressed, and its name does not say so; call it {name}{suffix}")


def _refuse_pointer(start: bytes, name: str) -> None:
    """Raise StepError for what Git LFS writes in place of a file that was not fetched."""
    if start.startswith(POINTER):
        raise StepError(f"{name}: a pointer of Git LFS, not the file itself; fetch it: git lfs pull")


def _read_json(path: Path, name: str) -> Iterator[Record]:
    """Read a JSON list of objects, a single object, or JSON Lines in a file called `.json`."""
    with open_bytes(path) as file:
        start = file.read(1 << 12)
    _refuse_other_content(start, name)
    if start.removeprefix(BOM).lstrip()[:1] != b"[":
        yield from _read_lines(path, name) if _has_whole_lines(path) else _read_object(path, name)
        return
    parser = StrictParser()
    with open_bytes(path) as file:
        for number, value in enumerate(iterate_json(file, name, parser), 1):
            yield make_record(value, name, number, parser.repeated)


def _has_whole_lines(path: Path) -> bool:
    """Return whether the first line that is not empty is more than the beginning of an object."""
    with open_bytes(path) as file:
        while (line := file.readline(LONGEST_ROW)) and not line.removeprefix(BOM).strip():
            pass
    return line.removeprefix(BOM).strip() != b"{"


def _read_object(path: Path, name: str) -> Iterator[Record]:
    """Read an object over several lines as one row, unless it wraps a list of rows. Raise StepError."""
    with open_bytes(path) as file:
        content = file.read(LONGEST_ROW + 1)
    if len(content) > LONGEST_ROW:
        raise StepError(
            f"{name}: one JSON object of more than {LONGEST_ROW >> 20} MiB; write a list of rows, or JSON Lines"
        )
    parser = StrictParser()
    try:
        value = parser.parse(content.removeprefix(BOM).decode())
    except (ValueError, RecursionError) as error:
        raise StepError(f"{name}: neither a JSON list, nor JSON Lines, nor one object: {error}") from error
    yield make_record(value, name, 1, parser.repeated)


def _read_csv(path: Path, name: str, delimiter: str = ",") -> Iterator[Record]:
    """Read CSV with a header; every value is text."""
    csv.field_size_limit(LONGEST_ROW)
    with open_bytes(path) as file:
        rows = csv.reader(_decode_lines(file, name), delimiter=delimiter, strict=True)
        header = next(rows, [])
        if len(header) == 1 and (other := next((mark for mark in OTHER_MARKS if mark in header[0]), None)):
            raise StepError(f"{name}: its columns are divided by {other!r}, not by {delimiter!r}; convert the file")
        if repeated := next((column for column in header if header.count(column) > 1), None):
            raise StepError(f"{name}: column {repeated!r} is in the header twice")
        number = 0
        for values in rows:
            if not values:
                continue
            number += 1
            text = json.dumps(values)
            if len(values) != len(header):
                problem = f"{len(values)} values for {len(header)} columns (line {rows.line_num})"
                yield Record(name, number, problem=problem, text=text)
            elif any("\udc80" <= letter <= "\udcff" for value in values if not value.isascii() for letter in value):
                yield Record(name, number, problem=f"not UTF-8 (line {rows.line_num})", text=text)
            else:
                yield Record(name, number, dict(zip(header, values, strict=True)))


def _decode_lines(file: Any, name: str) -> Iterator[str]:
    """Yield lines with bytes that are not UTF-8 as lone surrogates, so that only their row is bad."""
    for number, line in enumerate(file):
        if number == 0:
            _refuse_other_content(line, name)
            line = line.removeprefix(BOM)
        yield line.decode(errors="surrogateescape")


def _read_tsv(path: Path, name: str) -> Iterator[Record]:
    return _read_csv(path, name, "\t")


def _read_parquet(path: Path, name: str) -> Iterator[Record]:
    if path.suffix.lower() != ".parquet":
        raise StepError(f"{name}: Parquet is compressed inside; decompress the file")
    with path.open("rb") as content:
        _refuse_pointer(content.read(len(POINTER)), name)
    with open_shard(path, name) as file:
        yield from _read_batches(file.iter_batches(batch_size=BATCH), name)


def _read_arrow(path: Path, name: str) -> Iterator[Record]:
    """Read Arrow files and streams; the library datasets writes streams."""
    if path.suffix.lower() != ".arrow":
        raise StepError(f"{name}: decompress the file; Arrow is read in place")
    with pa.memory_map(str(path)) as file:
        start = file.read(len(POINTER))
        _refuse_pointer(start, name)
        is_file = start.startswith(b"ARROW1")
        file.seek(0)
        if is_file:
            reader = pa.ipc.open_file(file)
            yield from _read_batches((reader.get_batch(i) for i in range(reader.num_record_batches)), name)
        else:
            yield from _read_batches(iter(pa.ipc.open_stream(file)), name)


def _read_batches(batches: Iterator[pa.RecordBatch], name: str) -> Iterator[Record]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH):
            part = batch.slice(start, BATCH)
            try:
                part.validate(full=True)
                rows: list[Any] = part.to_pylist()
            except (pa.ArrowInvalid, UnicodeDecodeError):
                rows = [_decode_row(part, i) for i in range(part.num_rows)]
            for row in rows:
                number += 1
                if row is None:
                    yield Record(name, number, problem="damaged, or text that is not UTF-8")
                else:
                    yield Record(name, number, drop_nulls(row))


def _decode_row(part: pa.RecordBatch, index: int) -> dict[str, Any] | None:
    try:
        return part.slice(index, 1).to_pylist()[0]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None


def _read_text(path: Path, name: str) -> Iterator[Record]:
    """Read a file of text as one row."""
    with open_bytes(path) as file:
        content = file.read(LONGEST_ROW + 1)
    _refuse_other_content(content, name)
    if len(content) > LONGEST_ROW:
        yield Record(name, 1, problem=f"longer than {LONGEST_ROW >> 20} MiB")
        return
    try:
        yield Record(name, 1, {"text": content.removeprefix(BOM).decode()})
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: {error.reason} at byte {error.start + 1}"
        yield Record(name, 1, problem=problem, text=content.decode(errors="replace"))


READERS: dict[str, Callable[[Path, str], Iterator[Record]]] = {
    ".jsonl": _read_lines,
    ".ndjson": _read_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".txt": _read_text,
    ".md": _read_text,
}
"""Suffix to reader."""
