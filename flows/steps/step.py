"""One step, on the worker's side: lock, look again, check, run the task, digest, publish.

A spec is plain JSON: {root, run, recipe, attempt, step, inputs, folders, whole_process}. `inputs` maps a port to
{kind, key, output, step} or {source, digest}.
"""

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.compile import nameless
from flows.planning.contracts import CARRIERS, INDEPENDENT
from flows.planning.difference import first_difference
from flows.planning.environment import secrets_of
from flows.planning.redaction import redactor
from flows.running.audited import artifact_published
from flows.steps.actors import actors_of
from flows.steps.capture import captured, wait_for_writers
from flows.steps.lock import locked
from flows.steps.received import Received, check_unchanged, receive
from flows.steps.restoring import find_or_restore
from flows.steps.task_run import cpu_seconds, listener, peak_rss, run_task, teller
from lineage.artifacts.contract import find_disagreement, read_contract
from lineage.artifacts.provenance import describe_machine, read_commit, read_versions
from lineage.artifacts.store import Store
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.atomic_write import is_fragment, write_text_atomically
from schemas.endpoint import strip_operation
from schemas.errors import StepError
from schemas.gates import strip_policy
from schemas.manifest import Contract, Manifest
from schemas.plan import Step
from tasks.context import Context


def run_step(spec: dict[str, Any]) -> dict[str, Any]:
    """Make the artifact of a step, or find that it is there; returns its manifest. Raises StepError.

    A failed or killed try leaves its checkpoints and its log in the step's work folder.
    """
    step, layout = Step.model_validate(spec["step"]), Layout(Path(spec["root"]))
    store, work = Store(layout), layout.work(step.key)
    tell = teller(layout, step, spec["attempt"])
    with locked(work, on_wait=lambda: tell({"waiting": True})):
        manifest = find_or_restore(store, step)
        if manifest is None:
            tell({"started": os.getpid()})
            _check_identity(step)
            _claim_checkpoints(work / "checkpoints", step)
            manifest = store.publish(*_make(spec, step, layout, work))
            artifact_published(layout, manifest)
        shutil.rmtree(work, ignore_errors=True)
    return manifest.model_dump(mode="json")


def _make(spec: dict[str, Any], step: Step, layout: Layout, work: Path) -> tuple[Path, Manifest]:
    """Run the task into an unpublished folder; returns it with the manifest that it will have."""
    for leftover in work.glob("tmp-*"):
        shutil.rmtree(leftover)
    folder = work / f"tmp-{secrets.token_hex(4)}"
    folder.mkdir()
    received = receive(spec, step, layout)
    _check_contracts(step, received)
    hide = secrets_of(step.settings)
    hear, spent = listener(layout, step, spec["attempt"])
    grouped = spec["whole_process"] and step.resources.train is not None
    context = Context(
        inputs={one.record.port: one.folder for one in received}, folder=folder, checkpoints=work / "checkpoints",
        seed=step.seed, num_threads=max(1, int(step.resources.num_cpus)),
        device="cuda" if step.resources.num_gpus else "cpu", on_progress=hear,
        actors=actors_of(spec, step, work / "step.log"), key=step.key, remote=layout.remote,
        redact=redactor(hide).value,
    )  # fmt: skip
    started, wall, cpu = datetime.now(UTC), time.monotonic(), cpu_seconds()
    with (
        _inputs_watched(step, received, work),
        captured(work / "step.log", spec["whole_process"], hide),
        contextlib.closing(context.actors),
    ):
        if grouped:
            from flows.steps.groups import run_group  # Ray Train takes a second to import, and few steps need it

            result, told = run_group(spec, step, context, work)
            spent.update(told)
        else:
            result = run_task(step, context, layout, [Path(f) for f in spec["folders"]])
    seconds = time.monotonic() - wall
    outputs = Store(layout).describe(folder, dict(step.outputs))
    wait_for_writers(work / "step.log")
    (work / "step.log").rename(folder / "step.log")
    head, dirty = read_commit(Path(__file__).resolve().parents[2])
    return folder, Manifest(
        key=step.key, kind=step.kind, identity=step.identity, step=step.name, recipe=spec["recipe"], run=spec["run"],
        seed=step.seed, inputs=tuple(one.record for one in received), outputs=outputs,
        contract=_contract(folder, step), metrics=result.metrics, details=result.details, commit=head, dirty=dirty,
        versions=read_versions(), machine=describe_machine(), started=started.isoformat(), seconds=seconds,
        cpu_seconds=cpu_seconds() - cpu + spent["cpu_seconds"], gpu_seconds=seconds * step.resources.all_gpus,
        tokens=spent["spent"], paid=float(spent["paid"]), paid_tokens=spent["paid_tokens"],
        peak_rss=max(peak_rss(), spent["peak_rss"]),
    )  # fmt: skip


def _check_identity(step: Step) -> None:
    """Refuse a step whose settings are not those that its key stands for: its plan was changed by hand."""
    ports = {given.port for given in step.inputs}
    settings = nameless(strip_operation(strip_policy(step.settings)), ports)
    said = {"kind": step.kind, "seed": step.seed, "code": step.code, "settings": settings}
    kept = {name: step.identity.get(name) for name in said}
    if digest_of(step.identity) != step.key or digest_of(said) != digest_of(kept):
        raise StepError(f"{step.name}: its plan was changed and is not what its key stands for; run the recipe again")


@contextlib.contextmanager
def _inputs_watched(step: Step, received: list[Received], work: Path) -> Iterator[None]:
    """Raise StepError for an input that changed inside, and remove the checkpoints: they may rest on what it was."""
    try:
        yield
    finally:
        try:
            check_unchanged(step, received)
        except StepError:
            shutil.rmtree(work / "checkpoints", ignore_errors=True)
            raise


def _check_contracts(step: Step, received: list[Received]) -> None:
    if step.kind in INDEPENDENT:
        return
    models = [(one.record, read_contract(one.folder)) for one in received if one.record.type in CARRIERS]
    known = [(r, contract) for r, contract in models if contract is not None]
    for record, contract in known[1:]:
        if (problem := find_disagreement(known[0][1], contract)) is not None:
            pair = " and ".join(f"{r.port} ({r.step or r.source})" for r in (known[0][0], record))
            raise StepError(f"{step.name}: {pair} do not fit together: {problem}")


def _contract(folder: Path, step: Step) -> Contract | None:
    """Of the first output that is a model."""
    names = [name for name, artifact_type in step.outputs.items() if artifact_type in CARRIERS]
    found = (read_contract(folder / "outputs" / name) for name in names)
    return next((contract for contract in found if contract is not None), None)


def _claim_checkpoints(folder: Path, step: Step) -> None:
    """Refuse checkpoints that another key left; mark new ones with this key."""
    folder.mkdir(exist_ok=True)
    owner = folder / "key.json"
    if owner.is_file():
        left = json.loads(owner.read_text())
        if left["key"] != step.key:
            what = first_difference(left["identity"], step.identity)
            raise StepError(f"{step.name}: {folder} holds checkpoints of another step ({what}); remove the folder")
    elif not all(is_fragment(left) for left in folder.iterdir()):
        raise StepError(f"{step.name}: {folder} holds checkpoints that do not say whose they are; remove the folder")
    else:
        write_text_atomically(owner, json.dumps({"key": step.key, "identity": step.identity}))
