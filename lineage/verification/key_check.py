"""Reads the folder of keys for verification: an invalid file is a problem, and the other keys still count."""

import stat
from pathlib import Path

from lineage.keys import OTHERS, Ed25519PublicKey, key_name, load_named_signer, parse_private_key, parse_public_key
from lineage.layout import Layout
from lineage.state_files import Unreadable, read_regular
from schemas.errors import PlanError


def read_keys(layout: Layout) -> tuple[dict[str, Ed25519PublicKey], list[str]]:
    """Return trusted public keys by name, and one line per file without a key.

    Raise PlanError where POSTTRAIN_SIGNING_KEY names no key.
    """
    folder, keys, problems = layout.state / "keys", [], []
    for path in sorted([*folder.glob("*.pub"), *folder.glob("trusted/*.pub")]):
        try:
            keys.append(parse_public_key(path, read_regular(path)))
        except Unreadable as error:
            problems.append(f"{path}: {error}")
        except PlanError as error:
            problems.append(str(error))
    if (signer := load_named_signer()) is not None:
        keys.append(signer.private.public_key())
    by_name = {key_name(key): key for key in keys}
    return by_name, problems + check_private_key(layout, by_name)


def check_private_key(layout: Layout, keys: dict[str, Ed25519PublicKey]) -> list[str]:
    """Return what is wrong with the private key of this checkout, if it has one."""
    path = layout.state / "keys" / "signing.pem"
    try:
        key = parse_private_key(path, read_regular(path))
    except Unreadable as error:
        return [] if str(error) == "missing" else [f"{path}: {error}"]
    except PlanError as error:
        return [str(error)]
    problems = [
        f"{place}: others than its owner can read it; close it: chmod go= {place}" for place in _find_open_paths(path)
    ]
    if key_name(key.public_key()) not in keys:
        problems.append(f"{path.with_suffix('.pub')}: is not the public half of signing.pem")
    return problems


def _find_open_paths(path: Path) -> list[Path]:
    return [place for place in (path.parent, path) if stat.S_IMODE(place.stat().st_mode) & OTHERS]
