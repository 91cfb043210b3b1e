"""A DVC remote: outputs in DVC's own layout, and manifests and seals below `posttrain/`.

REMOTE/files/md5/..                             objects; `dvc pull` and `dvc push` use the same
REMOTE/posttrain/artifacts/<kind>-<key16>/      manifest, seal, signature, curves, log; the manifest comes last
REMOTE/posttrain/runs/<run>/plan.json           which artifacts a run was made of
REMOTE/posttrain/keys/<name>.pub                public keys of those who signed
"""

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage.layout import Layout
from lineage.registry.client import hide_credentials
from schemas.base import JsonObject
from schemas.errors import PlanError, PosttrainError, StepError

if TYPE_CHECKING:
    from dvc.repo import Repo

AD_HOC = "posttrain"
"""Name of a remote that is given as a path or URL."""


class Remote:
    """One remote of the checkout's DVC."""

    def __init__(self, repo: "Repo", name: str | None, label: str):
        self.repo, self.name, self.label = repo, name, label
        self.there = repo.cloud.get_remote(name, "push")
        self.fs = self.there.fs

    def path(self, *parts: str) -> str:
        """Return a path below `posttrain/` of the remote."""
        return self.fs.join(self.there.path, "posttrain", *parts)

    def has(self, *parts: str) -> bool:
        """Return whether a file is there."""
        return bool(self.fs.exists(self.path(*parts)))

    def put(self, file: Path, *parts: str) -> None:
        """Send a file."""
        self.fs.makedirs(self.path(*parts[:-1]), exist_ok=True)
        self.fs.put_file(str(file), self.path(*parts))

    def get(self, file: Path, *parts: str) -> None:
        """Fetch a file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self.fs.get_file(self.path(*parts), str(file))

    def names(self, *parts: str) -> list[str]:
        """Return the files below a folder, relative to it with slashes, sorted; none if there is no such folder."""
        base = self.path(*parts)
        if not self.fs.exists(base):
            return []
        return sorted("/".join(self.fs.relparts(path, base)) for path in self.fs.find(base))

    def send(self, objects: set[str]) -> int:
        """Send objects of DVC's cache that are not there; return how many. Raise StepError if one cannot be sent.

        Files before listings: where a listing is, DVC takes all that it lists for sent.
        """
        listings = {name for name in objects if name.endswith(".dir")}
        return sum(
            self._moved(self.repo.cloud.push(_make_hash_infos(some), remote=self.name), "sent to")
            for some in (set(objects) - listings, listings)
        )

    def fetch(self, objects: set[str]) -> int:
        """Fetch objects into DVC's cache; return how many. Raise StepError if one is missing."""
        return self._moved(self.repo.cloud.pull(_make_hash_infos(objects), remote=self.name), "fetched from")

    def _moved(self, result: Any, how: str) -> int:
        if result.failed:
            first = sorted(str(info.value) for info in result.failed)[0]
            raise StepError(f"{len(result.failed)} files could not be {how} {self.label}, the first is {first}")
        return len(result.transferred)


def _make_hash_infos(objects: Iterable[str]) -> set[Any]:
    from dvc_data.hashfile.hash_info import HashInfo

    return {HashInfo("md5", name) for name in objects}


@contextmanager
def open_remote(layout: Layout, name: str | None) -> Iterator[Remote]:
    """Open a remote by its name in DVC's configuration (default: DVC's default), or by path or URL.

    Raise PlanError if it cannot be used.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    for logger in ("dvc", "dvc_data", "dvc_objects"):  # errors are reported by exceptions
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    (layout.root / ".dvc").mkdir(parents=True, exist_ok=True)
    label = describe_remote(name)
    url = _remote_url(layout, name)
    layout.make_state()
    # DVC caches which files a remote holds; the cache is temporary here, as the remote may be cleared between calls.
    memory = tempfile.TemporaryDirectory(dir=layout.state, prefix="dvc-", ignore_cleanup_errors=True)
    config: JsonObject = {
        "core": {"analytics": False, "no_scm": not (layout.root / ".git").exists(), "site_cache_dir": memory.name},
        "cache": {"dir": str(layout.dvc_cache.parents[1])},
        **({"remote": {AD_HOC: {"url": url}}} if url else {}),
    }
    try:
        with memory, Repo(str(layout.root), config=config) as repo:
            yield Remote(repo, AD_HOC if url else name, label)
    except (DvcException, OSError) as error:
        raise PlanError(f"{label} cannot be used as a DVC remote: {_hide_address(error, name)}") from error
    except PosttrainError:
        raise
    except Exception as error:  # cloud clients raise errors of any type
        raise PlanError(f"{label} cannot be used: {type(error).__name__}: {_hide_address(error, name)}") from error


def _hide_address(error: Exception, name: str | None) -> str:
    """Return the message of an error, without the password of a URL."""
    return str(error).replace(name, describe_remote(name)) if name else str(error)


def describe_remote(name: str | None) -> str:
    """Return a remote's name for messages, without user and password."""
    return hide_credentials(name) if name and "://" in name else name or "DVC's default remote"


def _remote_url(layout: Layout, name: str | None) -> str | None:
    """Return the address if a place is given rather than a configured name."""
    if not name:
        return None
    if "://" in name:
        return name
    is_path = "/" in name or name.startswith((".", "~")) or Path(name).is_dir()
    return str(Path(name).expanduser().resolve()) if is_path else None
