"""Paths in the state folder; nothing is written outside it.

.posttrain/
  .gitignore                  keeps everything here out of git; created first
  artifacts/<kind>-<key16>/   manifest.json  seal.json  metrics.jsonl  step.log  rows_used.parquet  outputs/<name>/...
  work/<key>/                 lock  checkpoints/  tmp-<token>/ (an unpublished artifact)
  runs/<run>/                 plan.json  events.jsonl  report.html  prefect.json (which flow run of a deployment it is)
  mlflow.db  prefect/  ray/   homes of the servers
  tensorboard/  trackio/  wandb/  curves in the trackers of `track:`
  up.json  up/  database      `posttrain up`: its addresses, its logs, the database chosen
  cache/digests/              digests of files, one record per folder; may be deleted at any time
  cache/files/                a link per file that is an input by itself; may be deleted at any time
  cache/definitions           what source texts define and use; may be deleted at any time
  remote/answers.sqlite       answers of remote models by request, so that none is paid for twice
  canaries/                   responses and feedback of `posttrain serve --canary`, a file per champion and challenger
  stand-ins/                  made-up rows of `--stand-ins`; may be deleted at any time
  promoted/  champions.lock   evaluations that have promoted a model; locked while a champion moves
"""

import os
from dataclasses import dataclass
from pathlib import Path

from lineage.database import mlflow_address, read_chosen_database
from schemas.atomic_write import write_text_atomically

IGNORED = """\
# The state folder of posttrain: artifacts, records and the private signing key. Nothing of it belongs into git.
*
"""


@dataclass(frozen=True)
class Layout:
    """Paths below one checkout."""

    root: Path
    """Folder that holds dvc.yaml and .dvc/."""

    @classmethod
    def find(cls, start: Path | None = None) -> "Layout":
        """Return the checkout around `start` (default: here), by pyproject.toml or .posttrain; or POSTTRAIN_ROOT."""
        if forced := os.environ.get("POSTTRAIN_ROOT"):
            return cls(Path(forced).resolve())
        current = (start or Path.cwd()).resolve()
        for folder in (current, *current.parents):
            if (folder / ".posttrain").is_dir() or (folder / "pyproject.toml").is_file():
                return cls(folder)
        return cls(current)

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.root / ".posttrain"

    def make_state(self) -> Path:
        """Create the state folder, with the `.gitignore` that keeps it out of git, and return it.

        Code that may be the first to write into the state folder calls this before. Raise OSError.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        if not (self.state / ".gitignore").exists():
            write_text_atomically(self.state / ".gitignore", IGNORED)
        return self.state

    def artifact(self, kind: str, key: str) -> Path:
        """Return the folder of a published artifact."""
        return self.state / "artifacts" / f"{kind}-{key[:16]}"

    def work(self, key: str) -> Path:
        """Return the folder of an unfinished step: lock, checkpoints and unpublished files."""
        return self.state / "work" / key

    def run(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.state / "runs" / run

    @property
    def remote(self) -> Path:
        """Folder of the answers of remote models."""
        return self.state / "remote"

    @property
    def mlflow_uri(self) -> str:
        """URI of MLflow's tracking store: the PostgreSQL database chosen for this checkout, else an SQLite file."""
        database = read_chosen_database(self.state)
        return mlflow_address(database) if database else f"sqlite:///{self.state / 'mlflow.db'}"

    @property
    def dvc_cache(self) -> Path:
        """DVC's content-addressed cache."""
        return self.root / ".dvc" / "cache" / "files" / "md5"
