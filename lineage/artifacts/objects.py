"""DVC's content-addressed cache in DVC's layout: `<two hex digits>/<the rest>`, read-only, written atomically."""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from lineage.digests import digest_file, dvc_listing
from schemas.atomic_write import atomic_file, flush_path
from schemas.manifest import Output

FICLONE = 0x40049409
"""ioctl that shares the blocks of a file (linux/fs.h); copy-on-write file systems only."""


class Objects:
    """The cache below one folder."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, name: str) -> Path:
        """Return the path of an object by its md5 (with `.dir` for a folder's listing)."""
        return self.root / name[:2] / name[2:]

    def put_output(self, folder: Path, output: Output) -> None:
        """Add every file of an output and its listing; leave undamaged objects alone."""
        for file in output.files:
            self._put(file.md5, file.size, folder / file.path)
        self._put(output.dvc, len(dvc_listing(output.files)), dvc_listing(output.files))

    def _put(self, name: str, size: int, content: Path | bytes) -> None:
        target = self.path(name)
        if target.is_file() and target.stat().st_size == size and self.differs(name) is None:
            return
        # A damaged object is detected by its digest and written again, so there is no need to wait for the disk.
        with atomic_file(target, flush=False) as fresh:
            if isinstance(content, bytes):
                fresh.write_bytes(content)
            else:
                copy_file(content, fresh)
            fresh.chmod(0o444)

    def differs(self, name: str) -> str | None:
        """Return how the content of a cached object differs from its name, or None."""
        path = self.path(name)
        if not path.is_file():
            return "is missing"
        md5 = digest_file(path, name).md5
        return None if md5 == name.removesuffix(".dir") else f"has md5 {md5}"


def copy_file(source: Path, target: Path) -> None:
    """Copy the bytes, sharing blocks where the file system can."""
    with source.open("rb") as read, target.open("wb") as write:
        with contextlib.suppress(OSError):
            fcntl.ioctl(write.fileno(), FICLONE, read.fileno())
            return
        shutil.copyfileobj(read, write, 1 << 20)


def flush_tree(folder: Path) -> None:
    """Flush every file and folder below `folder` to the disk."""
    for base, _, names in os.walk(folder):
        for path in (*(Path(base) / name for name in names), Path(base)):
            flush_path(path)
