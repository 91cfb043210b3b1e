"""One step, in its own process: lock, look for the artifact again, check inputs, run the task, digest, publish."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from flows.planning.compile import blank_references
from flows.planning.contracts import CARRIERS, shares_tokens
from flows.planning.difference import find_first_difference
from flows.planning.turn_ends import find_model_disagreement
from flows.processes.capture import capture_output, wait_for_writers
from flows.processes.locks import hold_lock
from flows.processes.redaction import make_redactor
from flows.processes.secret_values import find_secrets
from flows.steps.artifacts import find_or_restore, log_published
from flows.steps.base_records import record_bases
from flows.steps.ray_actors import make_actors
from flows.steps.step_inputs import ReceivedInput, find_inputs, verify_unchanged
from flows.steps.step_spec import StepSpec
from flows.steps.task_run import (
    make_progress_writer,
    make_report_listener,
    measure_cpu_seconds,
    measure_peak_rss,
    run_task,
)
from lineage.artifacts.contract import override_contract, read_contract
from lineage.artifacts.provenance import describe_machine, read_commit, read_versions
from lineage.artifacts.store import Store
from lineage.digests import digest_of
from schemas.atomic_write import is_fragment, write_text_atomically
from schemas.endpoint import strip_operation
from schemas.errors import StepError
from schemas.gates import strip_policy
from schemas.manifest import Contract, Earlier, Manifest
from schemas.package import PREFIX, ROOT
from schemas.plan import Step
from schemas.stages.union import traits_of
from tasks.context import Context, Result, Spending


def run_step(spec: StepSpec) -> Manifest:
    """Make the artifact of a step unless it exists, and return its manifest. Raise StepError if the step fails.

    A failed or killed attempt leaves its checkpoints and its log in the step's work folder.
    """
    step, layout, work = spec.step, spec.layout, spec.work
    store = Store(layout)
    report = make_progress_writer(layout, step, spec.attempt)
    with hold_lock(work, on_wait=lambda: report({"waiting": True})):
        manifest = find_or_restore(store, step)
        if manifest is None:
            report({"started": os.getpid()})
            _check_identity(step)
            _claim_checkpoints(work / "checkpoints", step)
            manifest = store.publish(*_make_artifact(spec))
            log_published(layout, manifest)
        shutil.rmtree(work, ignore_errors=True)
    return manifest


def _make_artifact(spec: StepSpec) -> tuple[Path, Manifest]:
    """Run the task into an unpublished folder; return the folder and the manifest that it will have."""
    step, layout, work = spec.step, spec.layout, spec.work
    for leftover in work.glob("tmp-*"):
        shutil.rmtree(leftover)
    folder = work / f"tmp-{secrets.token_hex(4)}"
    folder.mkdir()
    inputs = find_inputs(spec)
    _check_contracts(step, inputs)
    started, cpu = datetime.now(UTC), measure_cpu_seconds()
    with _watch_inputs(step, inputs, work):
        result, spending, peak_rss = _run_captured(spec, inputs, folder, Spending(lambda: measure_cpu_seconds() - cpu))
    spent = spending.total()
    contract = _find_contract(folder, step)
    used = record_bases(spec, folder, inputs)
    outputs = Store(layout).describe(folder, dict(step.outputs))
    wait_for_writers(work / "step.log")
    (work / "step.log").rename(folder / "step.log")
    head, dirty = (None, False) if PREFIX else read_commit(ROOT)  # an installed wheel is in no repository of ours
    return folder, Manifest(
        key=step.key,
        kind=step.kind,
        identity=step.identity,
        step=step.name,
        recipe=spec.recipe,
        run=spec.run,
        seed=step.seed,
        inputs=tuple(used),
        outputs=outputs,
        contract=contract,
        metrics=dict(result.metrics),
        details=dict(result.details),
        commit=head,
        dirty=dirty,
        versions=read_versions(),
        machine=describe_machine(),
        started=started.isoformat(),
        seconds=spent.seconds,
        cpu_seconds=spent.cpu_seconds,
        gpu_seconds=spent.seconds * step.resources.all_gpus,
        tokens=spent.tokens,
        paid=spent.paid,
        paid_tokens=spent.paid_tokens,
        earlier=Earlier(**asdict(spending.earlier)),
        peak_rss=max(measure_peak_rss(), peak_rss),
    )


def _run_captured(
    spec: StepSpec, inputs: list[ReceivedInput], folder: Path, spending: Spending
) -> tuple[Result, Spending, int]:
    """Run the task, here or on the ranks of a group, with its output in the step's log.

    Return its result, what it spent, and the most memory that a rank has held.
    """
    step, log, secret_values = spec.step, spec.work / "step.log", find_secrets(spec.step.settings)
    actors = make_actors(spec, log)
    context = Context(
        inputs={received.record.port: received.folder for received in inputs},
        folder=folder,
        checkpoints=spec.work / "checkpoints",
        seed=step.seed,
        num_threads=max(1, int(step.resources.num_cpus)),
        device="cuda" if step.resources.num_gpus else "cpu",
        on_progress=make_report_listener(spec.layout, step, spec.attempt),
        actors=actors,
        key=step.key,
        remote=spec.layout.remote,
        redact=make_redactor(secret_values).value,
        spending=spending,
    )
    with capture_output(log, spec.own_process, secret_values), contextlib.closing(actors):
        if spec.own_process and step.resources.train is not None:
            from flows.steps.ray_train_group import run_group  # Ray Train takes a second to import

            return run_group(spec, context)
        return run_task(step, context, spec.layout, spec.folders), spending, 0


def _check_identity(step: Step) -> None:
    """Raise StepError if the settings are not those that the key stands for: the plan was edited."""
    ports = {step_input.port for step_input in step.inputs}
    settings = blank_references(strip_operation(strip_policy(step.settings)), ports)
    planned = {"kind": step.kind, "seed": step.seed, "code": step.code, "settings": settings}
    identified = {name: step.identity.get(name) for name in planned}
    if digest_of(step.identity) != step.key or digest_of(planned) != digest_of(identified):
        raise StepError(
            f"{step.name}: its settings in the plan do not match its key: the plan was edited; run the recipe again"
        )


@contextlib.contextmanager
def _watch_inputs(step: Step, received: list[ReceivedInput], work: Path) -> Iterator[None]:
    """Raise StepError if an input changes inside, and remove the checkpoints, which may rest on its old content."""
    try:
        yield
    finally:
        try:
            verify_unchanged(step, received)
        except StepError:
            shutil.rmtree(work / "checkpoints", ignore_errors=True)
            raise


def _check_contracts(step: Step, received: list[ReceivedInput]) -> None:
    if not traits_of(step.kind).shares_tokens:
        return
    models = [(one, read_contract(one.folder)) for one in received if shares_tokens(one.record)]
    contracts = [(one, override_contract(contract, step.settings)) for one, contract in models if contract is not None]
    for other, contract in contracts[1:]:
        first, expected = contracts[0]
        if (problem := find_model_disagreement(expected, contract, other.folder, step.settings)) is not None:
            pair = " and ".join(f"{r.port} ({r.step or r.source})" for r in (first.record, other.record))
            raise StepError(f"{step.name}: {pair} do not fit together: {problem}")


def _find_contract(folder: Path, step: Step) -> Contract | None:
    """Return the contract of the first output that is a model."""
    names = [name for name, artifact_type in step.outputs.items() if artifact_type in CARRIERS]
    contracts = (read_contract(folder / "outputs" / name) for name in names)
    return next((contract for contract in contracts if contract is not None), None)


def _claim_checkpoints(folder: Path, step: Step) -> None:
    """Raise StepError for checkpoints of another key; mark new ones with this key."""
    folder.mkdir(exist_ok=True)
    owner = folder / "key.json"
    if owner.is_file():
        left = json.loads(owner.read_text())
        if left["key"] != step.key:
            what = find_first_difference(left["identity"], step.identity)
            raise StepError(f"{step.name}: {folder} contains checkpoints of another step ({what}); remove the folder")
    elif not all(is_fragment(left) for left in folder.iterdir()):
        raise StepError(f"{step.name}: {folder} contains checkpoints without the key of their step; remove the folder")
    else:
        write_text_atomically(owner, json.dumps({"key": step.key, "identity": step.identity}))
