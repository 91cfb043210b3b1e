"""PostgreSQL for the records of Prefect and MLflow: one database, a schema for each, addresses without passwords.

A password is never stored: it comes from PGPASSWORD or ~/.pgpass, which both drivers read, or is part of
POSTTRAIN_DATABASE.
"""

import contextlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from schemas.atomic_write import write_text_atomically
from schemas.errors import PlanError

VARIABLE = "POSTTRAIN_DATABASE"
FILE = "database"
"""File in the state folder with the address chosen last, without a password."""
SQLITE = "sqlite"
SCHEMAS = ("prefect", "mlflow")
SHAPE = "postgresql://USER@HOST:PORT/NAME"


def read_chosen_database(state: Path) -> str | None:
    """Return the address of a checkout's PostgreSQL database, or None if it uses SQLite files."""
    configured = os.environ.get(VARIABLE)
    if not configured:
        with contextlib.suppress(FileNotFoundError):
            configured = (state / FILE).read_text().strip()
    return None if configured in (None, "", SQLITE) else configured


def remember_database(state: Path, address: str) -> None:
    """Record the choice for later commands in this checkout; `sqlite` selects the files again."""
    write_text_atomically(state / FILE, (address if address == SQLITE else hide_password(address)) + "\n")


def hide_password(address: str) -> str:
    """Return an address without its password, including one in its query, for messages."""
    parts = urlsplit(address)
    query = urlencode([(k, v) for k, v in parse_qsl(parts.query) if k != "password"], safe="/,")
    user, at, host = parts.netloc.rpartition("@")
    return _join_address(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))


def mlflow_address(address: str) -> str:
    """Return the address for MLflow: its schema, by the driver psycopg2."""
    return _add_query(address, "postgresql+psycopg2", {"options": f"-csearch_path={SCHEMAS[1]}"})


def prefect_address(address: str) -> str:
    """Return the address for Prefect, by the driver asyncpg; its schema is a setting of Prefect's own."""
    parts = urlsplit(address)
    query = {"ssl" if k == "sslmode" else k: v for k, v in parse_qsl(parts.query)}
    return _join_address(parts._replace(scheme="postgresql+asyncpg", query=urlencode(query, safe="/,")))


def prepare_database(address: str) -> None:
    """Create missing schemas. Raise PlanError if the address is wrong or no server answers."""
    if urlsplit(address).scheme not in ("postgresql", "postgres") or not urlsplit(address).path.strip("/"):
        raise PlanError(f"{hide_password(address)} is not a database address: give {SHAPE}, or `{SQLITE}`")
    connection = _connect(address)
    with contextlib.closing(connection), connection, connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(7705)")  # two processes at once would both find a schema missing
        cursor.execute("select schema_name from information_schema.schemata")
        existing = {name for (name,) in cursor.fetchall()}
        for name in SCHEMAS:
            if name not in existing:
                cursor.execute(f"create schema {name}")


def _connect(address: str) -> Any:
    try:
        import psycopg2
    except ImportError as error:
        raise PlanError("PostgreSQL needs psycopg2: pip install -c constraints.txt -e '.[postgres]'") from error
    try:
        return psycopg2.connect(address, connect_timeout=10)
    except psycopg2.Error as error:
        password = urlsplit(address).password
        message = str(error).strip().replace(password, "***") if password else str(error).strip()
        advice = f"the password comes from PGPASSWORD, ~/.pgpass or {VARIABLE}"
        raise PlanError(f"{hide_password(address)} cannot be used: {message}\n    {advice}") from error


def _add_query(address: str, scheme: str, more: dict[str, str]) -> str:
    parts = urlsplit(address)
    query = urlencode([*parse_qsl(parts.query), *more.items()], safe="/,", quote_via=quote)
    return _join_address(parts._replace(scheme=scheme, query=query))


def _join_address(parts: SplitResult) -> str:
    """Return an address from its parts; urlunsplit would drop the slashes before an empty host."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{parts.query}" if parts.query else "")
