"""New folders that appear only when everything in them is written."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import PlanError


@contextmanager
def open_new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside the target that takes its place when everything is written. Raise PlanError if it exists.

    An empty target is replaced.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PlanError(f"{folder} exists already; name a folder that does not, or an empty one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield fresh
        fresh.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
