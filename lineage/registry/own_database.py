"""The checkout's own MLflow database, created atomically."""

import os
import secrets
import sqlite3
from contextlib import closing, suppress

from lineage.layout import Layout


def create_own_database(layout: Layout) -> None:
    """Create the SQLite file of a checkout's MLflow, if it is used and missing, with all tables.

    MLflow creates tables in several transactions, and cannot use a file in which a killed process left a part of them.
    They are created in another file, whose copy gets the name. Raise OSError, sqlite3.Error, and what MLflow raises.
    """
    file = layout.make_state() / "mlflow.db"
    if layout.mlflow_uri != f"sqlite:///{file}" or os.path.lexists(file):
        return
    from mlflow import MlflowClient  # takes a second; only where there is no database yet

    draft, complete = (file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp") for _ in range(2))
    try:
        address = f"sqlite:///{draft}"
        MlflowClient(address, registry_uri=address).search_experiments(max_results=1)
        # A copy, because MLflow keeps the draft open: closing it would drop this process's locks on the same file.
        with closing(sqlite3.connect(draft)) as source, closing(sqlite3.connect(complete)) as target:
            source.backup(target)
        with suppress(FileExistsError):  # another process was faster
            os.link(complete, file)
    finally:
        draft.unlink(missing_ok=True)
        complete.unlink(missing_ok=True)
