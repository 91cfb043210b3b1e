"""The files of rows in an input folder, and how each is opened."""

import gzip
import io
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from learning.data.sources.splits import choose_files
from schemas.data_files import COMPRESSED, DATA_SUFFIXES, is_data_file
from schemas.errors import StepError

IGNORED = ("readme", "license", "licence", "changelog", "dataset_info", "dataset_infos", "state")
"""Names, without suffix, of files that describe a folder of data and hold no rows."""


def list_data_files(folder: Path, subset: str | None = None, split: str | None = None) -> list[Path]:
    """Return the files of rows of a subset and split below a folder, in the order of their paths.

    Hidden files, Markdown and files that describe the folder are left out, unless the folder holds one file only. Files
    that `posttrain fetch` left on the hub are among them (`require_present`). Raise StepError for a file that is no
    file of rows.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() or is_absent(path))
    if len(files) == 1 and is_data_file(files[0].name) and subset is None and split is None:
        return files
    seen = [path for path in files if not _is_left_out(path.relative_to(folder))]
    for path in seen:
        if not is_data_file(path.name):
            raise StepError(
                f"{path.relative_to(folder)}: no file of rows; those are {', '.join(DATA_SUFFIXES)}, also with "
                f"{' or '.join(COMPRESSED)}; name the files by a pattern, as path:folder/*.jsonl"
            )
    if not seen:
        raise StepError("data: no file of rows in the folder; " + f"those are {', '.join(DATA_SUFFIXES)}")
    return choose_files(folder, seen, subset, split)


def is_absent(path: Path) -> bool:
    """Return whether a path is a link to a file that is not there, as of files that were left on the hub."""
    return path.is_symlink() and not path.exists()


def require_present(path: Path, name: str) -> Path:
    """Return the path of a file called `name` in messages. Raise StepError if it was left on the hub."""
    if is_absent(path):
        raise StepError(
            f"{name}: not in the local cache of the hub; fetch what the recipe reads: posttrain fetch RECIPE"
        )
    return path


def _is_left_out(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return hidden or path.name.lower().split(".")[0] in IGNORED or path.suffix.lower() == ".md"


def get_data_suffix(path: Path) -> str:
    """Return the suffix of a file of rows without that of its compression: `.jsonl` for `chats.jsonl.gz`."""
    name = path.name.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return Path(name).suffix


def open_bytes(path: Path) -> BinaryIO:
    """Return a file opened for reading, decompressed."""
    if path.name.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.name.lower().endswith(".zst"):
        return cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")))
    return path.open("rb")
