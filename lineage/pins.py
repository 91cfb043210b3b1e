"""What a reference to the outside stands for at this moment, in words that a lock can hold it to."""

from pathlib import Path

import yaml

from lineage.layout import Layout
from lineage.sources import registered_model

CALLED = {"hub": "commit", "path": "digest", "mlflow": "digest"}
"""What the digest of a source is, by its scheme."""


def pin(reference: str, digest: str, layout: Layout, folders: tuple[Path, ...]) -> dict[str, str]:
    """The identity of a source: its commit or content digest, DVC's md5 where DVC tracks it, its version in MLflow.

    Raises PlanError when a registered model is gone.
    """
    scheme, _, rest = reference.partition(":")
    found = {CALLED[scheme]: digest}
    if scheme == "path" and (tracked := _tracked(rest, folders)):
        found["dvc"] = tracked
    if scheme == "mlflow":
        found["version"] = str(registered_model(rest, layout).version)
    return found


def _tracked(rest: str, folders: tuple[Path, ...]) -> str | None:
    """The md5 in the `.dvc` file beside a folder, if there is one."""
    found = (base / Path(rest).expanduser() for base in folders)
    place = next((path.resolve() for path in found if path.exists()), None)
    file = place.with_name(f"{place.name}.dvc") if place else None
    if file is None or not file.is_file():
        return None
    outs = (yaml.safe_load(file.read_text()) or {}).get("outs") or [{}]
    return outs[0].get("md5")
