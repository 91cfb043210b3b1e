"""The seal of an artifact: digests of all files outside the outputs, including the manifest.

The manifest names the files of the outputs; `seal.json` names all others (manifest, curves, log). It is written just
before publication, so that any later change of an artifact is detected.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from lineage.digests import digest_file
from lineage.state_files import read_record_file

SEAL = "seal.json"
BESIDE = frozenset({SEAL, "signature.json"})
"""Files that the seal does not name: itself, and the signature, which signs the seal."""


def write_seal(folder: Path) -> Path:
    """Seal an unpublished artifact; return the seal's path."""
    path = folder / SEAL
    path.write_bytes(_encode_seal(_hash_sealed_files(folder)))
    return path


def check_seal(folder: Path) -> list[str]:
    """Return the differences from the seal, one line per file: `path: difference`."""
    return [f"{folder / name}: {what}" for name, what in compare_with_seal(folder, _hash_sealed_files(folder))]


def compare_with_seal(folder: Path, digests: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the differences from the seal as (path, difference); `digests` are the sha256 of the files by path."""
    content = read_record_file(folder / SEAL)
    if content is None:
        return [(SEAL, "missing")]
    try:
        before = json.loads(content)
    except (ValueError, RecursionError):
        before = None
    if not isinstance(before, dict) or content != _encode_seal(before):
        return [(SEAL, "is not a seal any more")]
    now = {name: digest for name, digest in digests.items() if _is_sealed(name)}
    wrong = [(name, "missing") for name in sorted(before.keys() - now.keys())]
    wrong += [(name, "not in the seal") for name in sorted(now.keys() - before.keys())]
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            wrong.append((name, f"sha256 is {now[name][:16]}, was {str(before[name])[:16]}"))
    return wrong


def _is_sealed(name: str) -> bool:
    return name not in BESIDE and not name.startswith("outputs/")


def _hash_sealed_files(folder: Path) -> dict[str, str]:
    """Return the sha256 by path of every file outside `outputs/` except the seal and its signature."""
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: digest_file(path, name).sha256 for name, path in sorted(files.items()) if _is_sealed(name)}


def _encode_seal(digests: dict[str, str]) -> bytes:
    return json.dumps(digests, indent=1).encode()
