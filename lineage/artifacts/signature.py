"""The signature of an artifact: a DSSE envelope around an in-toto statement, in `signature.json` next to the seal.

The statement's subjects are the manifest and the seal, which name every other file of the artifact with its digest. It
also holds the head of the audit log at that moment, so that a log truncated before that entry is detected.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from lineage.audit.log import Anchor, EntrySignature, read_latest_anchor
from lineage.keys import Ed25519PublicKey, is_valid, load_signer
from lineage.layout import Layout
from lineage.state_files import Unreadable, parse_json, read_record_file, read_regular
from schemas.manifest import Manifest

SIGNATURE = "signature.json"
SIGNED = ("manifest.json", "seal.json")
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:posttrain:artifact:v1"


class Subject(TypedDict):
    """A file that a statement is about."""

    name: str
    digest: dict[str, str]


class Predicate(TypedDict):
    """The predicate of a statement: facts about an artifact."""

    key: str
    kind: str
    step: str
    recipe: str
    run: str
    outputs: dict[str, str]
    audit: Anchor | None


class Statement(TypedDict):
    """An in-toto statement; `_type` is left out here, as it is a constant."""

    subject: list[Subject]
    predicateType: str
    predicate: Predicate


class Envelope(TypedDict):
    """A DSSE envelope with one signature."""

    payload: str
    payloadType: str
    signatures: list[EntrySignature]


def write_signature(layout: Layout, folder: Path, manifest: Manifest) -> Path:
    """Sign an unpublished, sealed artifact; return the signature's path. Raise PlanError without a usable key."""
    key = load_signer(layout)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": _hash_record(folder / name)}} for name in SIGNED],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "key": manifest.key,
            "kind": manifest.kind,
            "step": manifest.step,
            "recipe": manifest.recipe,
            "run": manifest.run,
            "outputs": {name: o.digest for name, o in manifest.outputs.items()},
            "audit": read_latest_anchor(layout),
        },
    }
    body = json.dumps(statement, sort_keys=True).encode()
    signature = EntrySignature(keyid=key.name, sig=_encode_base64(key.sign(encode_pre_authentication(body))))
    envelope = Envelope(payload=_encode_base64(body), payloadType=PAYLOAD_TYPE, signatures=[signature])
    path = folder / SIGNATURE
    path.write_bytes(_encode_envelope(envelope))
    return path


def encode_pre_authentication(body: bytes) -> bytes:
    """Return the bytes that DSSE signs: type and body, each with its length, so that they cannot be confused."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body)


def read_statement(folder: Path) -> Statement | None:
    """Return the signed statement, unverified, or None if there is no readable signature."""
    envelope = _read_envelope(folder)
    return envelope[1] if envelope else None


def read_signer_name(folder: Path) -> str | None:
    """Return the name of the key that a signature claims, or None if there is no readable signature."""
    envelope = _read_envelope(folder)
    return envelope[0]["signatures"][0]["keyid"] if envelope else None


def check_signature(folder: Path, keys: dict[str, Ed25519PublicKey]) -> list[str]:
    """Return what is wrong with an existing signature, one line each: `path: what`."""
    wrong = compare_with_signature(folder, {name: _hash_record(folder / name) for name in SIGNED}, keys)
    if not wrong and (stranger := read_signer_name(folder)) not in keys:
        advice = "to trust it, put its .pub file into .posttrain/keys/trusted/"
        wrong = [(SIGNATURE, f"signed by a key that is not trusted here, {str(stranger)[:16]}; {advice}")]
    return [f"{folder / name}: {what}" for name, what in wrong]


def compare_with_signature(
    folder: Path, digests: Mapping[str, str], keys: dict[str, Ed25519PublicKey]
) -> list[tuple[str, str]]:
    """Return what contradicts an existing signature as (file, what); an unknown key is no contradiction.

    `digests` are the sha256 of the signed files by name.
    """
    parts = _read_envelope(folder)
    if parts is None:
        return [(SIGNATURE, "is not a signature any more")]
    envelope, statement, body = parts
    signature = envelope["signatures"][0]
    key = keys.get(signature["keyid"])
    if key is not None and not is_valid(key, base64.b64decode(signature["sig"]), encode_pre_authentication(body)):
        return [(SIGNATURE, "the signature does not fit what it signs")]
    try:
        signed = {entry["name"]: entry["digest"]["sha256"] for entry in statement["subject"]}
    except (KeyError, TypeError):
        return [(SIGNATURE, "is not a signature any more")]
    return [(name, "is not what was signed") for name in SIGNED if signed.get(name) != digests.get(name)]


def _read_envelope(folder: Path) -> tuple[Envelope, Statement, bytes] | None:
    """Return envelope, statement and the statement's bytes, if they are spelt exactly as posttrain writes them."""
    try:
        content = read_regular(folder / SIGNATURE)
        envelope = parse_json(content)
        body = base64.b64decode(envelope["payload"], validate=True)
        signature = envelope["signatures"][0]
        spelt: Envelope = {
            "payload": _encode_base64(body),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {"keyid": signature["keyid"], "sig": _encode_base64(base64.b64decode(signature["sig"], validate=True))}
            ],
        }
        statement = parse_json(body)
        _ = statement["predicate"]["audit"], [(one["name"], one["digest"]["sha256"]) for one in statement["subject"]]
        if not isinstance(signature["keyid"], str) or not isinstance(statement["predicate"], dict):
            return None
    except (Unreadable, ValueError, KeyError, TypeError, IndexError, binascii.Error):
        return None
    return (envelope, statement, body) if content == _encode_envelope(spelt) else None


def _encode_envelope(envelope: Envelope) -> bytes:
    return json.dumps(envelope, indent=1).encode()


def _encode_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _hash_record(path: Path) -> str:
    content = read_record_file(path)
    return "" if content is None else hashlib.sha256(content).hexdigest()
