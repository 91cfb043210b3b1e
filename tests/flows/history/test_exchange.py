"""Artifacts sent to a remote and fetched into an empty checkout are the same, HIT, and verify; damaged stay out."""

import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.servers.prefect_server import find_free_port
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.verification.verify import verify
from schemas.errors import PlanError, StepError
from tests.waiting import wait_for

LAB = """
def number(context, *, value: int = 1):
    (context.output("result") / "deep").mkdir()
    (context.output("result") / "deep/n.txt").write_text(str(value))
    (context.output("result") / "m.txt").write_text("shared")

def reads(context, *, more: int = 0):
    (context.output("result") / "n.txt").write_text((context.input("inputs.x") / "deep/n.txt").read_text() + str(more))
"""
RECIPE = """
name: sent
stages:
  a: {kind: python, function: {use: "LAB:number", value: 7}}
  b: {kind: python, function: "LAB:reads", inputs: {x: a}}
  c: {kind: python, function: {use: "LAB:reads", more: 5}, inputs: {x: a}}
"""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    root = tmp_path / "here"
    root.mkdir()
    monkeypatch.setenv("POSTTRAIN_ROOT", str(root))
    lab = f"sendlab_{os.getpid()}_{tmp_path.name[-10:]}".replace("-", "_")
    (root / f"{lab}.py").write_text(LAB)
    (root / "sent.yaml").write_text(RECIPE.replace("LAB", lab))
    layout = Layout(root)
    assert run_plan(planned(layout), layout, executor="inprocess", prefect=False, run="run-1").exit_code == 0
    return layout


def planned(layout):
    return plan_recipe(layout.root / "sent.yaml", layout)


def verdicts(layout):
    return {name: hit for name, (hit, _) in explain_plan(planned(layout), layout).items()}


def call(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def emptied(layout):
    """The checkout with nothing but its sources and DVC's configuration."""
    shutil.rmtree(layout.state)
    shutil.rmtree(layout.root / ".dvc/cache", ignore_errors=True)
    shutil.rmtree(layout.root / "data", ignore_errors=True)


def bytes_of(layout):
    folder = layout.state / "artifacts"
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def goes_round(layout, remote):
    """Send everything, lose it, fetch it: nothing differs, everything is HIT and verifies."""
    before = bytes_of(layout)
    assert "3 artifacts sent, 0 existed already" in call("push", "--all", "--remote", remote)
    assert "0 artifacts sent, 3 existed already; 0 files" in call("push", "--all", "--remote", remote)
    emptied(layout)
    assert set(verdicts(layout).values()) == {"MISS"}
    assert "3 artifacts fetched, 0 existed already" in call("pull", "--all", "--trust", "--remote", remote)
    assert bytes_of(layout) == before
    assert set(verdicts(layout).values()) == {"HIT"}
    verification = verify(layout)
    assert (verification.artifacts, verification.signed, verification.problems) == (3, 3, ())


def test_a_folder_as_a_remote(checkout, tmp_path):
    goes_round(checkout, tmp_path / "remote")
    outside = [p for p in tmp_path.iterdir() if p.name not in ("here", "remote")]
    assert outside == []
    assert not list(checkout.state.glob("pull/*"))


@pytest.fixture
def s3(tmp_path, monkeypatch):
    """An S3-compatible server with a bucket; yields its address."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "hidden"), ("DEFAULT_REGION", "eu-central-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with (tmp_path / "s3.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            read_log = (tmp_path / "s3.log").read_text
            wait_for(lambda: answers(url), alive=lambda: server.poll() is None, said=read_log)
            yield url
        finally:
            server.kill()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_s3_as_a_configured_remote(checkout, s3):
    import boto3

    region = {"LocationConstraint": "eu-central-1"}
    boto3.client("s3", endpoint_url=s3).create_bucket(Bucket="models", CreateBucketConfiguration=region)
    (checkout.root / ".dvc/config").write_text("[core]\n    no_scm = True\n")
    for words in (["add", "store", "s3://models/team"], ["modify", "store", "endpointurl", s3]):
        subprocess.run([sys.executable, "-m", "dvc", "remote", *words], cwd=checkout.root, check=True)
    goes_round(checkout, "store")
    files = boto3.client("s3", endpoint_url=s3).list_objects_v2(Bucket="models")["Contents"]
    assert all(file["Key"].startswith(("team/files/md5/", "team/posttrain/")) for file in files)


def test_a_target_travels_with_its_ancestors_and_nothing_else(checkout, tmp_path):
    remote = tmp_path / "remote"
    assert "2 artifacts sent" in call("push", "b", "--remote", remote)
    keys = {step.name: step.key for step in planned(checkout).steps}
    call("push", keys["c"][:12], "--remote", remote)
    emptied(checkout)
    assert "2 artifacts fetched" in call("pull", "sent.c", "--trust", "--remote", remote)
    assert verdicts(checkout) == {"a": "HIT", "b": "MISS", "c": "HIT"}
    assert "1 artifact fetched, 2 existed already" in call("pull", "run-1", "--remote", remote)
    assert verify(checkout).problems == ()


def test_files_that_were_cleared_from_the_remote_are_missed_and_sent_again(checkout, tmp_path):
    call("push", "--all", "--remote", tmp_path / "remote")
    (gone,) = (f for f in (tmp_path / "remote/files/md5").glob("*/*") if f.read_bytes() == b"shared")
    gone.unlink()
    kept = tmp_path / "kept"
    shutil.copytree(checkout.root, kept)
    emptied(checkout)
    with pytest.raises(StepError, match="2 files could not be fetched"):
        call("pull", "a", "--remote", tmp_path / "remote")
    assert list(Store(checkout).manifests()) == []
    shutil.copytree(kept, checkout.root, dirs_exist_ok=True)
    assert "0 artifacts sent, 3 existed already; 1 file" in call("push", "--all", "--remote", tmp_path / "remote")
    assert gone.is_file()


def test_unknown_keys_are_named_and_trusted_only_on_request(checkout, tmp_path):
    call("push", "--all", "--remote", tmp_path / "remote")
    emptied(checkout)
    assert "not trusted here" in call("pull", "--all", "--remote", tmp_path / "remote")
    assert len(verify(checkout).problems) == 3
    assert "0 artifacts fetched, 3 existed already" in call("pull", "--all", "--trust", "--remote", tmp_path / "remote")
    assert verify(checkout).problems == ()


def test_a_key_under_anothers_name_is_not_trusted(checkout, tmp_path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    call("push", "--all", "--remote", tmp_path / "remote")
    emptied(checkout)
    (file,) = (tmp_path / "remote/posttrain/keys").glob("*.pub")
    other = Ed25519PrivateKey.generate().public_key()
    file.write_bytes(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(StepError, match="another key"):
        call("pull", "--all", "--trust", "--remote", tmp_path / "remote")
    assert not list(checkout.state.glob("keys/trusted/*.pub"))


@pytest.mark.parametrize("name", ["manifest.json", "step.log"])
def test_a_byte_changed_in_the_remote_keeps_the_artifact_out(checkout, tmp_path, name):
    call("push", "b", "--remote", tmp_path / "remote")
    emptied(checkout)
    for file in (tmp_path / "remote/posttrain/artifacts").rglob(name):
        file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises((StepError, PlanError), match=r"damaged|has no artifacts"):
        call("pull", "--all", "--remote", tmp_path / "remote")
    assert list(Store(checkout).manifests()) == []


def test_a_changed_object_keeps_its_artifact_out(checkout, tmp_path):
    call("push", "--all", "--remote", tmp_path / "remote")
    emptied(checkout)
    for file in (tmp_path / "remote/files/md5").glob("*/*"):
        if not file.name.endswith(".dir"):
            file.chmod(0o644)
            file.write_bytes(b"X" * file.stat().st_size)
    with pytest.raises((StepError, PlanError)):
        call("pull", "--all", "--remote", tmp_path / "remote")
    assert list(Store(checkout).manifests()) == []


def test_a_name_that_leads_out_of_the_artifact_is_refused(checkout, tmp_path):
    from lineage.exchange.sharing import _check_path

    for path in ("../x", "/etc/x", "a/../../x", "a\\x", ""):
        with pytest.raises(StepError, match="does not belong"):
            _check_path(path)
    _check_path("outputs/model/model.safetensors")


def test_missing_parts_are_reported(checkout, tmp_path):
    with pytest.raises(PlanError, match="has no artifacts"):
        call("pull", "--all", "--remote", tmp_path / "empty")
    with pytest.raises(PlanError, match="cannot be used"):
        call("push", "--all", "--remote", "nowhere")
    with pytest.raises(PlanError, match="or say --all"):
        call("push", "--remote", tmp_path / "r")
    assert Path(tmp_path / "r").exists() is False
