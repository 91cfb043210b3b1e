"""What is published is signed; who changes it and everything that vouches for it, but has no key, is found out."""

import base64
import json
import shutil
import stat
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from lineage.artifacts.seal import write_seal
from lineage.artifacts.signature import SIGNATURE, encode_pre_authentication, read_signer_name, read_statement
from lineage.audit.log import append, head_file, log_file
from lineage.keys import load_signer
from lineage.layout import Layout
from lineage.verification.verify import verify
from schemas.errors import PlanError


def private_key(path, key=None):
    path.write_bytes(
        (key or Ed25519PrivateKey.generate()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return path


def noted(run):
    """What `flows` notes when a step is published."""
    for made in run.made.values():
        folder = run.store.folder(made)
        digests = {name: output.digest for name, output in made.outputs.items()}
        append(run.layout, "artifact published", key=made.key, digests=digests, signed_by=read_signer_name(folder))
    return run


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    layout = Layout(tmp_path)
    name = load_signer(layout).name
    path = layout.state / "keys/signing.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_signer(layout).name == name
    assert {p.name for p in path.parent.iterdir()} == {"signing.pem", "signing.pub"}


def test_openssl_agrees_with_the_signature(small_run, tmp_path):
    """Another program, the public key and the DSSE specification's bytes: nothing of ours vouches for itself."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl: apt install openssl")
    folder = small_run.store.folder(small_run.made["tuned"])
    envelope = json.loads((folder / SIGNATURE).read_bytes())
    body = base64.b64decode(envelope["payload"])
    message = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(body)).encode() + b" " + body
    assert message == encode_pre_authentication(body)
    (tmp_path / "said").write_bytes(message)
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    public = small_run.layout.state / "keys/signing.pub"
    files = ["-inkey", str(public), "-in", str(tmp_path / "said"), "-sigfile", str(tmp_path / "sig")]
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", *files]
    assert subprocess.run(command, capture_output=True).returncode == 0
    (tmp_path / "said").write_bytes(message.replace(b"tuned", b"tuner"))
    assert subprocess.run(command, capture_output=True).returncode != 0


def test_a_signature_names_manifest_and_seal_by_their_digests(small_run):
    made = small_run.made["tuned"]
    folder = small_run.store.folder(made)
    statement = read_statement(folder)
    digests = {s["name"]: s["digest"]["sha256"] for s in statement["subject"]}
    for name in ("manifest.json", "seal.json"):
        digest = subprocess.run(["sha256sum", folder / name], capture_output=True, text=True, check=True).stdout.split()
        assert digests[name] == digest[0]
    assert statement["predicate"]["outputs"] == {"policy": made.outputs["policy"].digest}
    assert verify(small_run.layout).signed == 5


def forge(run, step):
    """Other weights, with manifest and seal made to fit: what the key alone prevents."""
    made = run.made[step]
    folder, store = run.store.folder(made), run.store
    (folder / "outputs/policy/model.safetensors").write_bytes(b"evil")
    outputs = store.describe(folder, {name: o.type for name, o in made.outputs.items()})
    for name, output in outputs.items():
        store.objects.put_output(folder / "outputs" / name, output)
    (folder / "manifest.json").write_text(made.model_copy(update={"outputs": outputs}).model_dump_json(indent=1))
    write_seal(folder)
    return folder


def test_a_forged_artifact_with_a_right_seal_is_named(small_run):
    folder = forge(small_run, "tuned")
    problems = verify(small_run.layout).problems
    assert problems == tuple(f"{folder / name}: is not what was signed" for name in ("manifest.json", "seal.json"))


def test_taking_the_signature_off_does_not_help_once_the_log_saw_it(small_run):
    noted(small_run)
    assert verify(small_run.layout).problems == ()
    folder = forge(small_run, "tuned")
    (folder / SIGNATURE).unlink()
    problems = verify(small_run.layout).problems
    assert f"{folder / SIGNATURE}: missing" in problems
    assert any("its digests are not those that entry 4 of the audit log saw" in problem for problem in problems)


def test_unsigned_artifacts_are_reported_and_refused_where_signatures_are_required(small_run):
    for made in small_run.made.values():
        (small_run.store.folder(made) / SIGNATURE).unlink()
    verification = verify(small_run.layout)
    assert (verification.problems, verification.signed, len(verification.notes)) == ((), 0, 5)
    assert all("not signed" in note for note in verification.notes)
    assert len(verify(small_run.layout, all_signed=True).problems) == 5
    assert len(verify(small_run.layout, "tuned", all_signed=True).problems) == 4


def test_an_artifact_of_others_counts_once_their_key_is_trusted(small_run, tmp_path):
    other = Layout(tmp_path / "other")
    folder = small_run.store.folder(small_run.made["base"])
    theirs = other.state / "artifacts" / folder.name
    shutil.copytree(folder, theirs)
    shutil.copytree(small_run.layout.dvc_cache, other.dvc_cache)
    problems = verify(other).problems
    assert len(problems) == 1
    assert f"{theirs / SIGNATURE}: signed by a key that is not trusted here" in problems[0]
    (other.state / "keys/trusted").mkdir(parents=True)
    shutil.copy(small_run.layout.state / "keys/signing.pub", other.state / "keys/trusted/lab.pub")
    assert (verify(other).problems, verify(other).signed) == ((), 1)


def test_a_key_given_by_the_environment_signs_and_the_old_one_still_counts(small_run, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_SIGNING_KEY", str(private_key(tmp_path / "lab.pem")))
    newer = small_run.make("more", "sft", {"policy": {"w": b"3"}}, {"policy": "policy"})
    signers = {read_signer_name(small_run.store.folder(m)) for m in small_run.made.values()}
    assert read_signer_name(small_run.store.folder(newer)) == load_signer(small_run.layout).name
    assert len(signers) == 2
    assert (verify(small_run.layout).problems, verify(small_run.layout).signed) == ((), 6)


@pytest.mark.parametrize("wrong", ["absent", "text", "rsa"])
def test_a_key_that_is_none_is_refused_in_words(tmp_path, monkeypatch, wrong):
    path = tmp_path / "key.pem"
    if wrong == "text":
        path.write_text("nothing")
    if wrong == "rsa":
        private_key(path, generate_private_key(65537, 2048))
    monkeypatch.setenv("POSTTRAIN_SIGNING_KEY", str(path))
    with pytest.raises(PlanError, match=r"key\.pem.*(no such file|not a private key|must be Ed25519)"):
        append(Layout(tmp_path), "counted")


def test_a_log_whose_tail_was_cut_off_is_found_out_by_signatures(small_run):
    """Even when the log's own head was set back: a later signature saw a later entry."""
    noted(small_run)
    small_run.make("more", "sft", {"policy": {"w": b"3"}}, {"policy": "policy"})
    folder = small_run.store.folder(small_run.made["more"])
    small_run.layout.run("run-1").mkdir(parents=True)
    lines = log_file(small_run.layout).read_bytes().splitlines(keepends=True)
    log_file(small_run.layout).write_bytes(b"".join(lines[:-2]))
    head_file(small_run.layout).unlink()
    expected = f"{log_file(small_run.layout)}: ends at entry 3, but {folder / SIGNATURE} saw entry 5"
    assert verify(small_run.layout).problems == (expected,)


def test_equal_steps_have_equal_digests_for_every_signer(tmp_path, small_run, monkeypatch):
    before = {step: {n: o.digest for n, o in m.outputs.items()} for step, m in small_run.made.items()}
    keys = {step: m.key for step, m in small_run.made.items()}
    monkeypatch.setenv("POSTTRAIN_SIGNING_KEY", str(private_key(tmp_path / "lab.pem")))
    for made in list(small_run.made.values()):
        shutil.rmtree(small_run.store.folder(made))
    small_run.make("base", "init", {"policy": {"model.safetensors": b"w0", "config.json": b"{}"}}, {"policy": "policy"})
    assert small_run.made["base"].key == keys["base"]
    assert {n: o.digest for n, o in small_run.made["base"].outputs.items()} == before["base"]
