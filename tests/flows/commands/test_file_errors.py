"""A full disk, a state folder that cannot be written, a cluster that is not there: what the user reads."""

import errno
import os
import socket

import pytest
from rich.console import Console

from flows.runs import start
from flows.steps import ray_worker_main, ray_workers
from lineage.layout import Layout
from schemas.errors import advise_on_file_error, describe_error
from tests.flows.commands.test_cli import Root

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (FULL, "posttrain gc"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "posttrain gc"),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full"), "posttrain gc"),
        (OSError(errno.EROFS, "Read-only file system", "/a/.posttrain/runs"), "POSTTRAIN_ROOT"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/.posttrain"), "POSTTRAIN_ROOT"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/a/file/.posttrain"), "POSTTRAIN_ROOT"),
        (FileExistsError(errno.EEXIST, "File exists", "/a/.posttrain"), "move it away"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_of_the_disk_says_what_to_do(error, advice):
    assert advice in advise_on_file_error(error)
    assert describe_error(error).startswith(f"{type(error).__name__}: {error}; ")


def test_errors_of_the_users_own_files_get_no_advice_about_the_state_folder():
    for error in (
        PermissionError(errno.EACCES, "Permission denied", "words.txt"),
        FileExistsError("out"),
        ValueError(),
    ):
        assert advise_on_file_error(error) == ""


def test_a_command_that_meets_a_full_disk_says_so(root, monkeypatch, capsys):
    def refuse(layout):
        raise OSError(errno.ENOSPC, "No space left on device", str(layout.state))

    monkeypatch.setattr(Layout, "make_state", refuse)
    code, output = root.here(["run", "good.yaml", "--executor", "inprocess"], monkeypatch, capsys)
    assert (code, "No space left on device; free space on that disk (`posttrain gc`" in output) == (3, True), output


def test_a_state_folder_that_is_a_file_is_named(root, monkeypatch, capsys):
    (root.folder / ".posttrain").write_text("")
    code, output = root.here(["run", "good.yaml", "--executor", "inprocess"], monkeypatch, capsys)
    assert (code, "a file has the name of the state folder: move it away" in output) == (3, True), output


@pytest.mark.parametrize("where", ["flows.steps.in_process.run_step", "tasks.python.run"])
def test_a_step_that_meets_a_full_disk_says_so(root, where, monkeypatch, capsys):
    def refuse(*_):
        raise FULL

    monkeypatch.setattr(where, refuse)
    code, output = root.here(["run", "good.yaml", "--executor", "inprocess"], monkeypatch, capsys)
    assert code == 1
    assert "OSError: [Errno 28] No space left on device; free space on that disk" in output


def test_a_worker_that_cannot_publish_on_a_full_disk_is_not_called_dead(tmp_path, monkeypatch):
    from flows.steps import step
    from flows.steps.step_spec import StepFailure

    def refuse(spec):
        raise FULL

    class Spec:
        work = tmp_path / "work"
        attempt = "one"
        step = type("Step", (), {"resources": type("Resources", (), {"num_cpus": 1})})

    for name in ("die_with_parent", "use_default_stop_signals"):
        monkeypatch.setattr(ray_worker_main, name, lambda: None)
    monkeypatch.setattr(ray_worker_main.os, "setpgid", lambda process, group: None)
    monkeypatch.setattr(ray_worker_main, "set_process_env", lambda threads: None)
    monkeypatch.setattr(step, "run_step", refuse)
    assert ray_worker_main.run_worker(Spec) == StepFailure(describe_error(FULL))


def test_what_was_not_updated_is_one_line_with_what_to_do(capsys):
    def refuse():
        raise RuntimeError("(sqlite3.OperationalError) database or disk is full\n[SQL: CREATE TABLE metrics (...)]")

    start._update_projection("MLflow", refuse, Console())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("MLflow was not updated: (sqlite3.OperationalError) database or disk is full; free space")


def test_a_cluster_that_is_not_there_is_noticed_at_once(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ray_workers._open_connection(f"127.0.0.1:{port}")
        ray_workers._open_connection(f"ray://127.0.0.1:{port}")
    ray_workers._open_connection("auto")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    (problem,) = ray_workers.find_cluster_problems()
    assert f"the cluster at RAY_ADDRESS=127.0.0.1:{port}: " in problem
    assert "refused" in problem
