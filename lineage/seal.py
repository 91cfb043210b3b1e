"""The seal of an artifact: digests of everything that its manifest does not vouch for, the manifest included.

The manifest names the files of the outputs; `seal.json` names all others (manifest, curves, log). Written just before
publication, so that no byte of an artifact can change unseen.
"""

import json
from pathlib import Path

from lineage.digests import digest_file
from lineage.state_files import Unreadable, read_json, read_regular, sha256_of

SEAL = "seal.json"
BESIDE = frozenset({SEAL, "signature.json"})
"""What vouches for the others; the signature signs the seal."""


def write_seal(folder: Path) -> Path:
    """Seal an unpublished artifact; returns the seal's path."""
    path = folder / SEAL
    path.write_bytes(_text(_digests(folder)))
    return path


def manifest_is_sealed(folder: Path) -> bool:
    """Whether the manifest is the one that was published; one small file is hashed."""
    try:
        recorded = read_json(read_regular(folder / SEAL))["manifest.json"]
        return bool(recorded == sha256_of(read_regular(folder / "manifest.json")))
    except (Unreadable, ValueError, KeyError, TypeError):
        return False


def seal_problems(folder: Path) -> list[str]:
    """What differs from the seal, one line per file: `path: what`."""
    path = folder / SEAL
    try:
        content = read_regular(path)
    except Unreadable as error:
        return [f"{path}: {error}"]
    now = _digests(folder)
    try:
        before = read_json(content)
    except ValueError:
        before = None
    if not isinstance(before, dict) or content != _text(before):
        return [f"{path}: is not a seal any more"]
    wrong = [f"{folder / name}: missing" for name in sorted(before.keys() - now.keys())]
    wrong += [f"{folder / name}: not in the seal" for name in sorted(now.keys() - before.keys())]
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            wrong.append(f"{folder / name}: sha256 is {now[name][:16]}, was {str(before[name])[:16]}")
    return wrong


def _digests(folder: Path) -> dict[str, str]:
    """sha256 by path, of every file outside `outputs/` but for the seal and its signature."""
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {
        name: digest_file(path, name).sha256
        for name, path in sorted(files.items())
        if name not in BESIDE and not name.startswith("outputs/")
    }


def _text(digests: dict[str, str]) -> bytes:
    return json.dumps(digests, indent=1).encode()
