"""The seal of a checkpoint: the digest of every file of it, written last; without it nothing of the folder is read."""

from collections.abc import Mapping
from pathlib import Path

from schemas.sealed import NotSealed, file_digest, read_sealed, write_sealed

SEAL = "seal.json"


def seal_folder(folder: Path, name: str, digests: Mapping[str, str]) -> None:
    """Seal a folder that will have a name, in the folder above; `digests` are those of its files."""
    write_sealed(folder / SEAL, _label(folder.parent, name), dict(digests))


def find_folder_problem(folder: Path) -> str | None:
    """What is wrong with a sealed folder, in words; None when every file is as it was written and no other is there."""
    try:
        sealed = read_sealed(folder / SEAL, _label(folder.parent, folder.name))
    except OSError:
        return "it has no seal"
    except NotSealed:
        return "its seal is not the one that was written here"
    here = {path.name: path for path in folder.iterdir() if path.name != SEAL}
    if strange := sorted(here.keys() ^ sealed.keys()):
        return f"{strange[0]} is {'missing' if strange[0] in sealed else 'no part of it'}"
    for name, path in sorted(here.items()):
        if path.is_symlink() or not path.is_file() or file_digest(path) != sealed[name]:
            return f"{name} is not as it was written"
    return None


def _label(above: Path, name: str) -> str:
    return f"checkpoint {above.name}/{name}"
