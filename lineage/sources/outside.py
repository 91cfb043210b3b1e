"""Checks of `path:` and `hub:` references before anything is opened or hashed.

A folder of data may be large. Folders that are certainly a mistake are refused: the root, the home folder, one that
holds this checkout, system folders, and folders that contain devices or pipes.
"""

import os
import re
import stat
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from lineage.layout import Layout
from schemas.data_files import is_data_file
from schemas.errors import PlanError
from schemas.references import is_pattern

SYSTEM = frozenset(
    map(
        Path,
        ("/bin", "/boot", "/etc", "/home", "/lib", "/lib64", "/opt", "/run", "/sbin", "/srv", "/tmp", "/usr", "/var"),
    )
)
"""Folders of the system or of many users, which are refused; folders below them are allowed."""
KERNEL = (Path("/proc"), Path("/sys"), Path("/dev"))
"""Folders whose files are generated when they are read."""
SHARED_MEMORY = Path("/dev/shm")
MAX_FILES = 100_000
MAX_DEPTH = 64
SHOWN = 200
NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
REVISION = re.compile(r"(?!.*\.\.)[\w+-][\w./+-]{0,199}", re.ASCII)


def check_outside(reference: str, layout: Layout, folders: Iterable[Path]) -> None:
    """Raise PlanError for an outside reference that cannot be data or a model."""
    scheme, _, rest = reference.partition(":")
    if scheme == "hub":
        _check_hub(rest)
    elif scheme == "path":
        for base in folders:
            if (folder := _resolve_folder(base, rest)) is not None:
                _check_place(folder, rest, layout)
                _check_content(folder, rest)
                return
            if (file := _resolve_file(base, rest)) is not None:
                _check_kernel(file, rest)
                return


def find_matching_files(base: Path, rest: str) -> dict[str, Path]:
    """Return the files of rows that a pattern below `base` matches, by their path from where the pattern begins.

    Hidden files are left out. Raise PlanError for a pattern that begins at a folder that cannot be data.
    """
    try:
        path = Path(rest).expanduser()
        parts = path.parts
        fixed = next(i for i, part in enumerate(parts) if is_pattern(part))
        start = (base / Path(*parts[:fixed])).resolve()
        matches = list(islice(start.glob(str(Path(*parts[fixed:]))), MAX_FILES + 1))
    except (OSError, RuntimeError, ValueError, NotImplementedError) as error:
        raise PlanError(f"path:{rest[:SHOWN]} is no pattern of paths: {error}") from error
    if len(matches) > MAX_FILES:
        raise PlanError(f"path:{rest[:SHOWN]} matches more than {MAX_FILES} files; name fewer")
    names = {file.relative_to(start).as_posix(): file for file in matches if is_data_file(file.name) and file.is_file()}
    return {name: file.resolve() for name, file in sorted(names.items()) if not _is_hidden(name)}


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _check_hub(rest: str) -> None:
    name, at, revision = rest.partition("@")
    if not NAME.fullmatch(name) or (at and not REVISION.fullmatch(revision)):
        raise PlanError(f"hub:{rest[:SHOWN]} is not a name of the hub; write hub:org/name or hub:org/name@revision")


def _resolve_folder(base: Path, rest: str) -> Path | None:
    """Return the folder of a path below `base`, or None. Raise PlanError if the path is invalid."""
    try:
        folder = base / Path(rest).expanduser()
        return folder.resolve(strict=True) if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PlanError(f"path:{rest[:SHOWN]} is no path: {reason}; name a folder as path:./data") from error


def _resolve_file(base: Path, rest: str) -> Path | None:
    file = base / Path(rest).expanduser()
    return file.resolve() if file.is_file() else None


def _check_place(folder: Path, rest: str, layout: Layout) -> None:
    protected = [("the home folder", _home_folder()), ("this checkout", layout.root.resolve())]
    if folder == Path(folder.anchor):
        raise _refuse_folder(rest, "is the root of the file system")
    if folder in SYSTEM:
        raise _refuse_folder(rest, "is a folder of the system")
    for what, place in protected:
        if place is not None and place.is_relative_to(folder):
            raise _refuse_folder(rest, f"is {what}, or holds it")
    _check_kernel(folder, rest)


def _check_kernel(place: Path, rest: str) -> None:
    for kernel in KERNEL:
        below = place.is_relative_to(kernel) and not place.is_relative_to(SHARED_MEMORY)
        if below or place == SHARED_MEMORY or (kernel.is_dir() and _is_on_device(place, kernel)):
            raise _refuse_folder(rest, f"lies in {kernel}, whose files are no files on a disk")


def _home_folder() -> Path | None:
    try:
        return Path.home().resolve()
    except (RuntimeError, OSError):
        return None


def _is_on_device(folder: Path, kernel: Path) -> bool:
    """Return whether a folder is on the special file system that is mounted at a folder of the kernel."""
    mounted = os.lstat(kernel).st_dev
    return mounted != os.lstat(kernel.parent).st_dev and os.lstat(folder).st_dev == mounted


def _check_content(folder: Path, rest: str) -> None:
    """Raise PlanError for devices, pipes and sockets, too many files, and unreadable folders."""
    count, waiting = 0, [(folder, 0)]
    while waiting:
        current, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise PlanError(f"path:{rest[:SHOWN]}: folders inside one another more than {MAX_DEPTH} deep")
        try:
            with os.scandir(current) as listing:
                entries = list(listing)
        except OSError as error:
            raise PlanError(f"path:{rest[:SHOWN]}: {current} cannot be read: {error.strerror}") from error
        for entry in entries:
            count += 1
            if entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), depth + 1))
            elif (kind := _describe_special_file(entry)) is not None:
                raise PlanError(f"path:{rest[:SHOWN]}: {entry.path} is {kind}; data must be regular files")
        if count > MAX_FILES:
            raise _refuse_folder(rest, f"has more than {MAX_FILES} files: pack them, or name a folder below it")


def _describe_special_file(entry: os.DirEntry) -> str | None:
    try:
        mode = entry.stat().st_mode
    except OSError:  # a link to nothing, or in a circle: it holds nothing that could be read
        return None
    kinds = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), None)


def _refuse_folder(rest: str, why: str) -> PlanError:
    return PlanError(f"path:{rest[:SHOWN]} {why}; name the folder that holds the data or the model, as path:./data")
