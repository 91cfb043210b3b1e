"""Champions: the alias `champion` of a registered model in MLflow, how it moved, and moving it.

A version of the registered model NAME is a reference to an artifact, by its tags `key`, `digest` and `output`. Every
move is a tag `posttrain.move.<number>` of the version that the alias went to, and an entry of the audit log.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock

from lineage import auditlog
from lineage.keys import trusted
from lineage.layout import Layout
from lineage.registry import client, dvc_uri, is_empty, registry_uri, shown
from lineage.signature import SIGNATURE, signature_problems
from lineage.store import Store
from schemas.errors import PlanError
from schemas.manifest import Manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

ALIAS = "champion"
MOVE = "posttrain.move."
MODELS = ("policy", "adapter", "reward_model", "process_reward_model", "value_model")
Action = Literal["promote", "rollback"]


@dataclass(frozen=True)
class Move:
    """One move of the alias."""

    number: int
    """Counts from 1 over all versions of the registered model."""
    action: Action
    version: int
    """Where the alias went."""
    before: int | None
    """Where it was."""
    key: str
    """Key of the step that made the model."""
    digest: str
    """Content digest of the model."""
    output: str
    """Named output of that step."""
    when: str
    """UTC, ISO 8601."""
    who: str
    evidence: dict[str, Any]
    """For a promotion the gate that passed: its step, key and run, and what it said."""


@dataclass(frozen=True)
class Champion:
    """Where the alias stands."""

    name: str
    version: int
    key: str
    digest: str
    output: str
    """Named output of the step."""
    folder: Path | None
    """The model's folder; None where the artifact is not in this checkout."""
    since: str | None
    """UTC, ISO 8601; None when the alias was set by something else than a move."""
    by: Move | None
    """The move that set it; None likewise."""


class Moved(PlanError):
    """The alias stands elsewhere than whoever wants to move it thought."""


def champion(layout: Layout, name: str) -> Champion | None:
    """The champion of a registered model; None while there is none. Raises PlanError when MLflow cannot be asked."""
    if is_empty(layout):
        return None
    with _asked(layout) as mlflow:
        version = _aliased(mlflow, name)
        return _champion(layout, version, _moves(mlflow, name)) if version else None


def champions(layout: Layout) -> list[Champion]:
    """All champions, by name. Raises PlanError when MLflow cannot be asked."""
    if is_empty(layout):
        return []
    with _asked(layout) as mlflow:
        names = sorted(model.name for model in _pages(mlflow.search_registered_models) if ALIAS in model.aliases)
    return [found for name in names if (found := champion(layout, name))]


def history(layout: Layout, name: str) -> list[Move]:
    """Every move of the alias, oldest first. Raises PlanError when MLflow cannot be asked."""
    if is_empty(layout):
        return []
    with _asked(layout) as mlflow:
        return _moves(mlflow, name)


def move(
    layout: Layout,
    name: str,
    key: str,
    *,
    evidence: dict[str, Any],
    output: str | None = None,
    expected: Champion | None,
    action: Action = "promote",
) -> Champion:
    """Move the alias to the artifact of a key, unless it is there; of two moves at once from `expected`, one wins.

    `evidence` is kept with the move. Raises Moved when the champion is not `expected` any more, and PlanError when the
    artifact is not here, is no model or does not verify, or MLflow cannot be asked.
    """
    manifest, output = _model(layout, key, output)
    layout.make_state()
    with FileLock(layout.state / "champions.lock"), _asked(layout) as mlflow:
        now, moves = _aliased(mlflow, name), _moves(mlflow, name)
        if now and _is(now, manifest, output) and moves and moves[-1].version == int(now.version):
            return _champion(layout, now, moves)
        if not (now and _is(now, manifest, output)) and (expected.version if expected else None) != _number(now):
            raise Moved(_conflict(name, expected, now, moves))
        version = _version(mlflow, name, manifest, output)
        digest = manifest.outputs[output].digest
        told = Move(
            number=moves[-1].number + 1 if moves else 1, action=action, version=int(version.version),
            before=_number(now), key=key, digest=digest, output=output,
            when=datetime.now(UTC).isoformat(timespec="seconds"), who=auditlog.who(), evidence=evidence,
        )  # fmt: skip
        # The log first: there is never a champion that it does not know. A move that was cut off before its tag is
        # made again by the next run with the same evidence.
        facts = {k: v for k, v in asdict(told).items() if k not in ("action", "when", "who")}
        auditlog.append(layout, action, model=name, **facts)
        mlflow.set_registered_model_alias(name, ALIAS, version.version)
        mlflow.set_model_version_tag(name, version.version, f"{MOVE}{told.number:06d}", json.dumps(asdict(told)))
        mlflow.update_model_version(name, version.version, f"{_origin(manifest, output)}\n\n{_sentence(told)}")
        return _champion(layout, version, [*moves, told])


def _model(layout: Layout, key: str, output: str | None) -> tuple[Manifest, str]:
    """The artifact of a key, verified, and which of its outputs is the model."""
    store = Store(layout)
    manifest = store.with_key(key)
    if manifest is None:
        raise PlanError(f"the artifact {key[:16]} is not in this checkout (any more): fetch it, or make it again")
    output = output or next((n for n, o in manifest.outputs.items() if o.type in MODELS), None)
    if output is None or output not in manifest.outputs or manifest.outputs[output].type not in MODELS:
        raise PlanError(f"{manifest.step} ({key[:16]}) is no model: a champion must be {', '.join(MODELS)}")
    check_artifact(layout, manifest)
    return manifest, output


def check_artifact(layout: Layout, manifest: Manifest) -> None:
    """Hash an artifact again and check its signature, where it has one; raises PlanError when it is another."""
    store = Store(layout)
    folder = store.folder(manifest)
    problems = store.verify(manifest)
    if (folder / SIGNATURE).is_file():
        problems += signature_problems(folder, trusted(layout))
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise PlanError(f"{manifest.step} ({manifest.key[:16]}) is not what was published: {problems[0]}{more}")


def _champion(layout: Layout, version: "ModelVersion", moves: list[Move]) -> Champion:
    key, output = version.tags.get("key", ""), version.tags.get("output", "")
    manifest = Store(layout).with_key(key)
    folder = Store(layout).output_folder(manifest.kind, key, output) if manifest else None
    by = moves[-1] if moves and moves[-1].version == int(version.version) else None
    digest = version.tags.get("digest", "")
    return Champion(version.name, int(version.version), key, digest, output, folder, by and by.when, by)


def _version(mlflow: "MlflowClient", name: str, manifest: Manifest, output: str) -> "ModelVersion":
    """The version that refers to an output, made where there is none."""
    from mlflow.exceptions import MlflowException

    try:
        mlflow.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found = [v for v in _versions(mlflow, name) if _is(v, manifest, output)]
    if found:
        return found[0]
    experiments = [e.experiment_id for e in _pages(mlflow.search_experiments)]
    made_in = mlflow.search_runs(experiments, f"tags.`posttrain.key` = '{manifest.key}'", max_results=1,
                                 order_by=["attributes.start_time"])  # fmt: skip
    run = made_in[0].info.run_id if made_in else None
    return mlflow.create_model_version(
        name, dvc_uri(manifest.outputs[output].dvc), run_id=run, tags=tags_of(manifest, output),
        description=_origin(manifest, output),
    )  # fmt: skip


def _origin(manifest: Manifest, output: str) -> str:
    return f"{manifest.recipe}.{manifest.step}, output {output}"


def _sentence(told: Move) -> str:
    """A move for the page of its version."""
    said = told.evidence
    why = f"{said['recipe']}.{said['gate']}: {'; '.join(said['gates'])}" if "gate" in said else said.get("why", "")
    how = "champion" if told.action == "promote" else "champion again"
    return f"{how} since {told.when} by {told.who}{f' ({why})' if why else ''}"


def tags_of(manifest: Manifest, output: str) -> dict[str, str]:
    """What a version says of the artifact that it refers to."""
    return {"key": manifest.key, "digest": manifest.outputs[output].digest, "output": output, "step": manifest.step}


def _is(version: "ModelVersion", manifest: Manifest, output: str) -> bool:
    return (version.tags.get("key"), version.tags.get("output")) == (manifest.key, output)


def _aliased(mlflow: "MlflowClient", name: str) -> "ModelVersion | None":
    from mlflow.exceptions import MlflowException

    try:
        return mlflow.get_model_version_by_alias(name, ALIAS)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):  # the second: no such alias
            return None
        raise


def _number(version: "ModelVersion | None") -> int | None:
    return int(version.version) if version else None


def _moves(mlflow: "MlflowClient", name: str) -> list[Move]:
    told = [Move(**json.loads(text)) for v in _versions(mlflow, name) for tag, text in v.tags.items()
            if tag.startswith(MOVE)]  # fmt: skip
    return sorted(told, key=lambda each: each.number)


def _versions(mlflow: "MlflowClient", name: str) -> "list[ModelVersion]":
    return _pages(mlflow.search_model_versions, f"name = '{name}'")


def _pages(search: Any, *condition: str) -> list[Any]:
    found = list(page := search(*condition))
    while page.token:
        page = search(*condition, page_token=page.token)
        found += page
    return found


def _conflict(name: str, expected: Champion | None, now: "ModelVersion | None", moves: list[Move]) -> str:
    was = f"version {expected.version}" if expected else "none"
    last = moves[-1] if moves and moves[-1].version == _number(now) else None
    by = f", since {last.when} by {last.who}" if last else ""
    return f"the champion of {name} was {was} and is now {f'version {now.version}' if now else 'none'}{by}"


@contextmanager
def _asked(layout: Layout) -> "Iterator[MlflowClient]":
    """MLflow, whose refusals become a PlanError that names the address and no password."""
    mlflow = client(layout)
    try:
        yield mlflow
    except PlanError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, MlflowException) and type(error).__module__.partition(".")[0] != "sqlalchemy":
            raise
        said = str(error).splitlines()[0][:300] if isinstance(error, MlflowException) else type(error).__name__
        raise PlanError(f"MLflow's registry at {shown(registry_uri(layout))}: {said}") from error
