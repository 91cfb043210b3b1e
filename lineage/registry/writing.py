"""Writes the moves of a registered model into MLflow: versions, their tags, the alias."""

from typing import TYPE_CHECKING

from lineage.audit.log import encode_entry
from lineage.audit.moves import Move
from lineage.registry.registered import ALIAS, Registered, fetch_all_pages, find_foreign_tags, tag_name, version_source
from schemas.manifest import Manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient


def write_version(
    mlflow: "MlflowClient", registered: Registered, moves: list[Move], manifest: Manifest, output: str
) -> int:
    """Return the number of the version that refers to an output of an artifact, created if there is none.

    A version that refers to it by its tags alone, and not by its source, or that was promoted as another artifact, is
    not used.
    """
    latest = {move.version: (move.key, move.output) for move in moves}
    for number, version in registered.versions.items():
        identity = (manifest.key, output)
        refers = latest.get(number, (version.tags.get("key"), version.tags.get("output")))
        if refers == identity and version.source == version_source(manifest, output):
            return number
    return _create_version(mlflow, registered.name, manifest, output)


def write_moves(mlflow: "MlflowClient", registered: Registered, moves: list[Move], manifest: Manifest | None) -> None:
    """Set tags and alias to the moves, and delete tags that claim to be moves.

    `manifest`, of the champion, describes its version.
    """
    for number, tag in list(find_foreign_tags(registered, moves)):
        mlflow.delete_model_version_tag(registered.name, str(number), tag)
    for move in moves:
        version = registered.versions.get(move.version)
        if version is None:
            continue
        text = encode_entry(move.entry)
        if version.tags.get(tag_name(move)) != text:
            mlflow.set_model_version_tag(registered.name, str(move.version), tag_name(move), text)
    for number, move in {move.version: move for move in moves}.items():
        version = registered.versions.get(number)
        for tag, value in (("key", move.key), ("digest", move.digest), ("output", move.output)):
            if version is not None and version.tags.get(tag) != value:
                mlflow.set_model_version_tag(registered.name, str(number), tag, value)
    tip = moves[-1]
    mlflow.set_registered_model_alias(registered.name, ALIAS, str(tip.version))
    if manifest is not None:
        origin = _describe_origin(manifest, tip.output)
        mlflow.update_model_version(registered.name, str(tip.version), f"{origin}\n\n{_describe_move(tip)}")


def _create_version(mlflow: "MlflowClient", name: str, manifest: Manifest, output: str) -> int:
    from mlflow.exceptions import MlflowException

    try:
        mlflow.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    experiments = [e.experiment_id for e in fetch_all_pages(mlflow.search_experiments)]
    made_in = mlflow.search_runs(
        experiments, f"tags.`posttrain.key` = '{manifest.key}'", max_results=1, order_by=["attributes.start_time"]
    )
    run = made_in[0].info.run_id if made_in else None
    made = mlflow.create_model_version(
        name,
        version_source(manifest, output),
        run_id=run,
        tags=_version_tags(manifest, output),
        description=_describe_origin(manifest, output),
    )
    return int(made.version)


def _describe_origin(manifest: Manifest, output: str) -> str:
    return f"{manifest.recipe}.{manifest.step}, output {output}"


def _describe_move(made: Move) -> str:
    """Return a description of a move for the page of its version."""
    evidence = made.evidence
    why = (
        f"{evidence['recipe']}.{evidence['gate']}: {'; '.join(evidence['gates'])}"
        if "gate" in evidence
        else evidence.get("why", "")
    )
    how = "champion" if made.action == "promote" else "champion again"
    return f"{how} since {made.when} by {made.who}{f' ({why})' if why else ''}"


def _version_tags(manifest: Manifest, output: str) -> dict[str, str]:
    """Return the tags of a version that refers to an artifact."""
    return {"key": manifest.key, "digest": manifest.outputs[output].digest, "output": output, "step": manifest.step}
