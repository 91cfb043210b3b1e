"""`posttrain export minari`: collected steps as a data set of Minari, which other libraries read."""

from pathlib import Path

from flows.champions.promotion import find_artifact
from flows.publishing.new_folder import open_new_folder
from learning.control.stepping.minari_files import write_minari
from learning.control.stepping.transitions import read_transitions
from lineage.artifacts.artifact_check import check_artifact
from lineage.layout import Layout
from schemas.errors import PlanError

VERSION = "v0"
"""Version in the name of the data set."""


def export_minari(layout: Layout, word: str, folder: Path) -> tuple[int, int]:
    """Write a step's transitions as a data set of Minari; return its numbers of steps and episodes.

    Raise PlanError if the folder is not empty or the step has no transitions, UnknownTarget if there is no such step.
    """
    manifest = find_artifact(layout, word)
    if "transitions" not in manifest.outputs:
        raise PlanError(f"{word} is a step of kind {manifest.kind}, which has no transitions; name one of kind collect")
    check_artifact(layout, manifest)
    source = layout.artifact(manifest.kind, manifest.key) / "outputs" / "transitions"
    transitions = read_transitions(source)
    name = f"posttrain/{manifest.step}-{manifest.key[:8]}-{VERSION}"
    with open_new_folder(folder) as fresh:
        episodes = write_minari(transitions, fresh, name, "hdf5")
    return len(transitions), episodes
