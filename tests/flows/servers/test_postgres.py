"""`posttrain up --database`: Prefect and MLflow keep their records in a real PostgreSQL; no password leaks."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.small_steps import NUMBER, two_numbers

PASSWORD = "hunter2-postgres-secret"
RECIPE = two_numbers("kept", "kept_work")


def programs():
    """Folder of initdb and pg_ctl, which Debian does not put on the path."""
    beside = [Path(shutil.which("initdb")).resolve().parent] if shutil.which("initdb") else []
    folders = beside or sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    return folders[-1]


def someone():
    """Who may run it: initdb refuses root."""
    if os.geteuid():
        return {}
    known = {entry.pw_name for entry in pwd.getpwall()}
    name = "postgres" if "postgres" in known else "nobody"
    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


@pytest.fixture
def database():
    """postgresql://lab@127.0.0.1:PORT/records of a server that wants PASSWORD."""
    bin, who = programs(), someone()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as at_end,
    ):
        if who:
            os.chown(folder, pwd.getpwnam(who["user"]).pw_uid, who["group"])
        secret, data = Path(folder, "secret"), f"{folder}/data"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)

        def call(name, *words, **more):
            subprocess.run([bin / name, *words], check=True, stdout=subprocess.DEVNULL, cwd="/", **who, **more)

        call("initdb", "-D", data, "-U", "lab", "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync")
        options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
        call("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")
        at_end.callback(call, "pg_ctl", "-D", data, "-m", "immediate", "stop")
        words = ["-h", "127.0.0.1", "-p", str(port), "-U", "lab", "records"]
        call("createdb", *words, env={**os.environ, "PGPASSWORD": PASSWORD})
        yield f"postgresql://lab@127.0.0.1:{port}/records"


def ask(database, sql):
    import psycopg2

    with contextlib.closing(psycopg2.connect(database, password=PASSWORD)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return sorted(cursor.fetchall())


@pytest.mark.slow
def test_a_run_is_recorded_in_postgresql_by_both(checkout, processes, database):
    made = checkout("root", RECIPE, {"kept_work": NUMBER})
    up = made.start("up", "--prefect-port", 0, "--mlflow-port", 0, "--database", database, PGPASSWORD=PASSWORD)
    read_output = made.output
    processes.wait_for(lambda: up.poll() is not None or "Ctrl-C stops everything" in read_output.read_text(), 240)
    assert up.poll() is None, read_output.read_text()
    assert f"records  {database}" in read_output.read_text()
    commands = [" ".join(process.cmdline()) for process in processes.tree(up)]
    made.finish(made.start("run", made.recipe, PGPASSWORD=PASSWORD))
    run = next(iter(made.layout.state.glob("runs/*"))).name
    assert ask(database, "select name, state_type::text from prefect.flow_run") == [(run, "COMPLETED")]
    processes.wait_for(
        lambda: (
            ask(database, "select name, state_type::text from prefect.task_run")
            == [
                ("a", "COMPLETED"),
                ("b", "COMPLETED"),
            ]
        )
    )
    assert ask(database, "select name, status from mlflow.runs") == sorted(
        [(run, "FINISHED"), ("a", "FINISHED"), ("b", "FINISHED")]
    )
    up.terminate()
    assert up.wait(60) == 0
    made.is_quiet()
    # The choice is remembered: the next run finds the database without being told, also with a server of its own.
    made.recipe.write_text(RECIPE.replace("value: 4", "value: 5"))
    made.finish(made.start("run", made.recipe, PGPASSWORD=PASSWORD))
    assert len(ask(database, "select name from prefect.flow_run")) == 2
    assert len(ask(database, "select name from mlflow.runs")) == 6
    made.is_quiet()
    assert not (made.layout.state / "mlflow.db").exists()
    assert not (made.layout.state / "prefect" / "prefect.db").exists()
    assert PASSWORD not in "".join(commands)
    everything = [path for path in made.layout.root.rglob("*") if path.is_file()]
    assert [str(path) for path in everything if PASSWORD.encode() in path.read_bytes()] == []
    columns = """select table_schema || '.' || table_name from information_schema.tables
        where table_schema in ('prefect', 'mlflow') and table_type = 'BASE TABLE'"""
    for (table,) in ask(database, columns):
        assert ask(database, f"select count(*) from {table} t where t::text like '%{PASSWORD}%'") == [(0,)], table


@pytest.mark.slow
def test_a_database_that_refuses_is_reported_before_anything_starts(checkout, database):
    made = checkout("root", RECIPE)
    refused = made.start("up", "--prefect-port", 0, "--mlflow-port", 0, "--database", database, PGPASSWORD="wrong-one")
    assert refused.wait(120) == 3
    output = made.output.read_text()
    assert f"{database} cannot be used" in output
    assert "password authentication failed" in output
    assert "PGPASSWORD" in output
    assert "wrong-one" not in output
    assert not (made.layout.state / "database").exists()
