"""Curves in Trackio's local database: `TRACKIO_DIR=.posttrain/trackio trackio show`."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from lineage.layout import Layout
from lineage.tracking.curve_sinks import CurveLine
from schemas.plan import Step


class TrackioSink:
    """One run of Trackio per step of a run, grouped by run; the project is the recipe.

    The rows go into the database as Trackio's own imports write them: `trackio.init` would end the record of another
    step that runs at the same time, and reads variables that send it to a server.
    """

    def __init__(self, layout: Layout, recipe: str, run: str, step: Step):
        folder = layout.state / "trackio"
        os.environ["TRACKIO_DIR"] = str(folder)  # read when it is imported
        from trackio.sqlite_storage import TRACKIO_DIR, SQLiteStorage  # pyright: ignore[reportMissingImports]  # an extra

        if folder != TRACKIO_DIR:
            raise RuntimeError(f"trackio was imported before this run began and writes to {TRACKIO_DIR}")
        SQLiteStorage.validate_project_name(recipe)
        self.storage, self.recipe, self.name = SQLiteStorage, recipe, f"{run}/{step.name}"
        created = datetime.now(UTC).isoformat()
        self.config = {**step.settings, "seed": step.seed, "_Group": run, "_Created": created}
        SQLiteStorage.delete_run(recipe, self.name)

    def write(self, lines: Sequence[CurveLine]) -> None:
        """Add one row per line."""
        self.storage.bulk_log(
            self.recipe,
            self.name,
            [line.values for line in lines],
            steps=[line.at for line in lines],
            timestamps=[datetime.fromtimestamp(line.time, UTC).isoformat() for line in lines],
            config=self.config,
        )

    def close(self, *, failed: bool) -> None:
        """Do nothing: every row is in the database."""
