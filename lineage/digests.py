"""Digests of files and folders: sha256, and md5 as DVC computes it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from schemas.manifest import FileDigest

CHUNK = 1 << 20


def digest_file(path: Path, relative: str) -> FileDigest:
    """Return size, md5 and sha256 of a file, read in one pass."""
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
            size += len(chunk)
    return FileDigest(path=relative, size=size, md5=md5.hexdigest(), sha256=sha256.hexdigest())


def folder_digests(folder: Path) -> tuple[FileDigest, ...]:
    """Return digests of every file below a folder, sorted by their path as text (DVC's order)."""
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return tuple(digest_file(files[name], name) for name in sorted(files))


def content_digest(files: tuple[FileDigest, ...]) -> str:
    """Return the content address of a folder: sha256 over its sorted (path, sha256) pairs."""
    return content_digest_of({f.path: f.sha256 for f in files})


def content_digest_of(digests: Mapping[str, str]) -> str:
    """Return the content address of a folder, from the sha256 of its files by path."""
    body = json.dumps([[path, digests[path]] for path in sorted(digests)])
    return hashlib.sha256(body.encode()).hexdigest()


def dvc_listing(files: tuple[FileDigest, ...]) -> bytes:
    """Return the `.dir` object that DVC stores for a folder."""
    return json.dumps([{"md5": f.md5, "relpath": f.path} for f in files], sort_keys=True).encode()


def dvc_digest(files: tuple[FileDigest, ...]) -> str:
    """Return DVC's name of a folder."""
    return hashlib.md5(dvc_listing(files), usedforsecurity=False).hexdigest() + ".dir"


def digest_of(value: object) -> str:
    """Return the sha256 of a JSON value, independent of the order of its keys."""
    body = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(body.encode()).hexdigest()
