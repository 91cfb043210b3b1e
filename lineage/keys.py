"""Ed25519 keys: the signing key of the checkout, and the public keys that are trusted.

.posttrain/keys/signing.pem   made at first use, readable by its owner only; POSTTRAIN_SIGNING_KEY names another file
.posttrain/keys/signing.pub   its public half, to share with others
.posttrain/keys/trusted/*.pub public keys of others
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from lineage.layout import Layout
from lineage.state_files import Unreadable, read_regular
from schemas.errors import PlanError

VARIABLE = "POSTTRAIN_SIGNING_KEY"
OTHERS = 0o077
"""Mode bits that give access to anyone but the owner."""


@dataclass(frozen=True)
class Signer:
    """A private key and the name of its public half."""

    name: str
    private: Ed25519PrivateKey

    def sign(self, message: bytes) -> bytes:
        """Return the signature, 64 bytes; the same for the same message."""
        return self.private.sign(message)


def load_signer(layout: Layout) -> Signer:
    """Return the signing key, created if there is none. Raise PlanError if the named file is not a signing key."""
    if (signer := load_named_signer()) is not None:
        return signer
    path = _ensure_own_key(layout)
    return _load_signer(path, path.lstat().st_mtime_ns)


def derive_key(layout: Layout, purpose: str) -> bytes | None:
    """Return a secret for one purpose, derived from the signing key, or None without a signing key.

    Raise PlanError if the file holds no signing key, and OSError if it cannot be read.
    """
    configured = os.environ.get(VARIABLE)
    path = Path(configured) if configured else layout.state / "keys" / "signing.pem"
    if not path.is_file():
        return None
    private = _load_signer(path, path.stat().st_mtime_ns).private.private_bytes_raw()
    return hmac.new(private, f"posttrain {purpose}".encode(), hashlib.sha256).digest()


def load_trusted_keys(layout: Layout) -> dict[str, Ed25519PublicKey]:
    """Return the trusted public keys by name: the checkout's own and those in `keys/trusted`. Raise PlanError."""
    folder = layout.state / "keys"
    keys = [load_public_key(path) for path in sorted([*folder.glob("*.pub"), *folder.glob("trusted/*.pub")])]
    if (signer := load_named_signer()) is not None:
        keys.append(signer.private.public_key())
    return {key_name(key): key for key in keys}


def is_valid(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    """Return whether a signature of a message was made with this key."""
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def key_name(key: Ed25519PublicKey) -> str:
    """Return the sha256 of the raw public key, in hex."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()


def _refuse_missing(path: Path) -> Signer:
    raise PlanError(f"{VARIABLE}={path}: no such file; name an Ed25519 key in PEM, or unset it for a key of one's own")


def _read_key_file(path: Path) -> bytes:
    try:
        return read_regular(path)
    except Unreadable as error:
        raise PlanError(f"{path}: {error}") from error


def load_named_signer() -> Signer | None:
    """Return the key that POSTTRAIN_SIGNING_KEY names, or None. Raise PlanError if the file contains no key."""
    if not (configured := os.environ.get(VARIABLE)):
        return None
    path = Path(configured)
    return _load_signer(path, path.stat().st_mtime_ns) if path.is_file() else _refuse_missing(path)


@lru_cache
def _load_signer(path: Path, changed: int) -> Signer:
    key = parse_private_key(path, _read_key_file(path))
    return Signer(key_name(key.public_key()), key)


def parse_private_key(path: Path, content: bytes) -> Ed25519PrivateKey:
    """Return the private key in the content of a file. Raise PlanError if it contains none."""
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PlanError(f"{path}: not a private key in PEM without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise PlanError(f"{path}: a signing key must be Ed25519; make one: openssl genpkey -algorithm ed25519")
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Return the Ed25519 key in a file. Raise PlanError if it contains none."""
    return parse_public_key(path, _read_key_file(path))


def parse_public_key(path: Path, content: bytes) -> Ed25519PublicKey:
    """Return the public key in the content of a file. Raise PlanError if it contains none."""
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PlanError(f"{path}: not a public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise PlanError(f"{path}: not an Ed25519 key")
    return key


def _ensure_own_key(layout: Layout) -> Path:
    """Return the key file of this checkout; of several processes that create it at once, one wins."""
    path = layout.state / "keys" / "signing.pem"
    if not path.is_file():
        ensure_keys_folder(layout)
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _create_file(path, private, 0o600)
    public = path.with_suffix(".pub")
    if not public.is_file():
        key_here = _load_signer(path, path.lstat().st_mtime_ns).private.public_key()
        _create_file(public, key_here.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
    return path


def ensure_keys_folder(layout: Layout) -> Path:
    """Return the folder of keys, created if missing, which only its owner can enter; git ignores it."""
    folder = layout.make_state() / "keys"
    folder.mkdir(mode=0o700, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & OTHERS:  # created by other code with wider permissions
        folder.chmod(0o700)
    return folder


def _create_file(path: Path, content: bytes, mode: int) -> None:
    """Create a file atomically, without replacing an existing one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.write(handle, content)
        os.fsync(handle)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(handle)
        temporary.unlink()
