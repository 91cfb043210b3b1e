"""The recorded episodes of evaluations, as images inside of a report."""

import base64
from collections.abc import Mapping

from lineage.artifacts.completeness import OUTPUTS
from lineage.layout import Layout
from schemas.base import JsonObject
from schemas.manifest import Manifest

DETAIL = "recordings"
"""Key of the details of a step that has recorded episodes; they are files of its output `report`."""


def read_recordings(made: Mapping[str, Manifest], layout: Layout) -> dict[str, list[JsonObject]]:
    """Return the recorded episodes of every step that has some: what each shows, and `source`, the GIF as a data URI.

    `source` is None where the artifact's files are not on this machine.
    """
    return {
        name: [{**row, "source": _read_source(manifest, layout, row["file"])} for row in manifest.details[DETAIL]]
        for name, manifest in made.items()
        if manifest.details.get(DETAIL)
    }


def _read_source(manifest: Manifest, layout: Layout, file: str) -> str | None:
    path = layout.artifact(manifest.kind, manifest.key) / OUTPUTS / "report" / file
    if not path.is_file():
        return None
    return f"data:image/gif;base64,{base64.b64encode(path.read_bytes()).decode()}"
