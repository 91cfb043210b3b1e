"""Completeness of an artifact: compares all its files with manifest, seal and signature.

The caller provides the digests of the files, computed or cached (`lineage.artifacts.digest_cache`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lineage.artifacts.seal import SEAL, compare_with_seal
from lineage.digests import content_digest, digest_of, dvc_digest
from lineage.state_files import read_record_file
from schemas.manifest import FileDigest, Manifest

MANIFEST = "manifest.json"
OUTPUTS = "outputs/"
STRANGE, UNKNOWN = "not a regular file", "not in the manifest"
NOT_OURS = frozenset({STRANGE, UNKNOWN})
"""Kinds of damage of a path that no step published."""


@dataclass(frozen=True)
class Damage:
    """One file of an artifact that differs from its published state."""

    path: str
    """Path relative to the artifact's folder, with slashes."""
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"

    @property
    def is_output(self) -> bool:
        """Whether it is part of an output; DVC's cache has copies of outputs only."""
        return self.path.startswith(OUTPUTS)


@dataclass(frozen=True)
class Condition:
    """The state of an artifact: its manifest, if it is the sealed one, and all damages."""

    manifest: Manifest | None
    damages: tuple[Damage, ...]

    @property
    def is_complete(self) -> bool:
        """Whether it is undamaged and may be used."""
        return self.manifest is not None and not self.damages

    @property
    def text(self) -> str:
        """The first damage, and the number of further ones."""
        more = f" and {len(self.damages) - 1} more" if len(self.damages) > 1 else ""
        return f"{self.damages[0]}{more}" if self.damages else "whole"


def examine_files(folder: Path, digests: Mapping[str, str], strange: tuple[str, ...]) -> Condition:
    """Compare an artifact's files (sha256 by path) and other paths (`strange`) with its manifest and seal."""
    damages = [Damage(name, STRANGE) for name in strange]
    damages += [Damage(name, what) for name, what in compare_with_seal(folder, digests)]
    manifest = read_sealed_manifest(folder)
    if manifest is None:
        if not any(damage.path in (MANIFEST, SEAL) for damage in damages):
            damages.append(Damage(MANIFEST, "not a manifest"))
        return Condition(None, tuple(damages))
    damages += [Damage(MANIFEST, what) for what in check_manifest(manifest)]
    recorded = {f"{OUTPUTS}{name}/{f.path}": f for name, output in manifest.outputs.items() for f in output.files}
    damages += _compare_outputs(recorded, digests, strange)
    return Condition(manifest, tuple(damages))


def _compare_outputs(
    recorded: Mapping[str, FileDigest], digests: Mapping[str, str], strange: tuple[str, ...]
) -> Iterator[Damage]:
    present = {name for name in digests if name.startswith(OUTPUTS)}
    for name in sorted(present - recorded.keys()):
        yield Damage(name, UNKNOWN)
    for name in sorted(recorded):
        digest, expected = digests.get(name), recorded[name].sha256
        if digest is None and name not in strange:
            yield Damage(name, "missing")
        elif digest is not None and digest != expected:
            yield Damage(name, f"sha256 is {digest[:16]}, was {expected[:16]}" if digest else "cannot be read")


def read_sealed_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of an artifact's folder; None if it is missing or differs from the sealed one."""
    content, seal = read_record_file(folder / MANIFEST), read_record_file(folder / SEAL)
    if content is None or seal is None:
        return None
    try:
        if json.loads(seal)[MANIFEST] != hashlib.sha256(content).hexdigest():
            return None
        return Manifest.model_validate_json(content)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def check_manifest(manifest: Manifest) -> Iterator[str]:
    """Yield what is inconsistent within a manifest."""
    if digest_of(manifest.identity) != manifest.key:
        yield "the identity does not give the key"
    for name, output in manifest.outputs.items():
        if (content_digest(output.files), dvc_digest(output.files)) != (output.digest, output.dvc):
            yield f"the digest of output {name} does not fit its files"
