"""The private key never gets into git, and only its owner can read it, from the first moment on."""

import os
import socket
import stat
import subprocess

import pytest
from typer.testing import CliRunner

from flows.cli import app
from lineage import keys
from lineage.audit.log import append
from lineage.keys import ensure_keys_folder, load_signer
from lineage.layout import Layout

RECIPE = """
name: tiny
stages:
  a: {kind: python, function: "LAB:number"}
"""
LAB = """
def number(context):
    (context.output("result") / "n.txt").write_text("1")
"""


def git(folder, *words):
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A fresh git repository with a recipe and no `.gitignore` of its own."""
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    monkeypatch.setenv("POSTTRAIN_SIGNING_KEY", "")
    monkeypatch.chdir(tmp_path)
    lab = f"keylab_{os.getpid()}_{tmp_path.name[-8:]}".replace("-", "_")
    (tmp_path / f"{lab}.py").write_text(LAB)
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("LAB", lab))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "-A")
    return tmp_path


def staged(folder):
    """What `git add -A` would commit of the state folder."""
    git(folder, "add", "-A")
    return [name for name in git(folder, "ls-files").splitlines() if ".posttrain" in name]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "tiny.yaml", "--executor", "inprocess"],
        ["plan", "tiny.yaml"],
        ["validate", "tiny.yaml"],
        ["status"],
        ["gc"],
        ["gc", "--yes"],
        ["pin"],
        ["lineage", "--verify"],
        ["query", "select 1"],
        ["champions"],
        ["push", "--all", "--remote", "elsewhere/remote"],
        ["pull", "--all", "--remote", "elsewhere/remote"],
    ],
    ids=lambda words: "-".join(words),
)
def test_whatever_command_comes_first_nothing_of_the_state_folder_gets_into_git(repository, words):
    (repository / "elsewhere/remote").mkdir(parents=True)
    CliRunner().invoke(app, words)
    assert staged(repository) == []
    append(Layout(repository), "verified")
    assert (repository / ".posttrain/keys/signing.pem").is_file()
    assert staged(repository) == []
    assert ".posttrain" not in git(repository, "status", "--porcelain", "-uall")


def test_up_makes_no_state_folder_that_git_sees(repository):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        CliRunner().invoke(app, ["up", "--prefect-port", str(taken.getsockname()[1])])
    assert (repository / ".posttrain/.gitignore").is_file()
    assert staged(repository) == []


def test_the_key_is_never_written_before_git_ignores_it_nor_readable_by_others(tmp_path, monkeypatch):
    seen = []
    write = os.write

    def watched(handle, content):
        if b"PRIVATE KEY" in content:
            ignored = (tmp_path / ".posttrain/.gitignore").is_file()
            modes = (os.fstat(handle).st_mode, (tmp_path / ".posttrain/keys").stat().st_mode)
            seen.append((ignored, *map(stat.S_IMODE, modes)))
        return write(handle, content)

    monkeypatch.setattr(keys.os, "write", watched)
    before = os.umask(0)
    try:
        load_signer(Layout(tmp_path))
    finally:
        os.umask(before)
    assert seen == [(True, 0o600, 0o700)]
    assert stat.S_IMODE((tmp_path / ".posttrain/keys/signing.pem").stat().st_mode) == 0o600


def test_a_folder_of_keys_that_something_else_made_is_closed_to_others(tmp_path):
    (tmp_path / ".posttrain/keys/trusted").mkdir(parents=True, mode=0o755)
    (tmp_path / ".posttrain/keys").chmod(0o755)
    assert stat.S_IMODE(ensure_keys_folder(Layout(tmp_path)).stat().st_mode) == 0o700


def test_an_older_checkout_gets_the_file_with_its_next_entry(tmp_path):
    layout = Layout(tmp_path)
    append(layout, "verified")
    (layout.state / ".gitignore").unlink()
    append(layout, "verified")
    assert (layout.state / ".gitignore").read_text().endswith("\n*\n")
