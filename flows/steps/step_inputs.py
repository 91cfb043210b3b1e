"""The inputs of a step: found and compared with the plan before it starts, and checked again after it has ended."""

from dataclasses import dataclass
from pathlib import Path

from flows.steps.step_spec import MadeInput, StepSpec
from lineage.artifacts.digest_cache import DigestCache, Scan, hash_file, scan_folder
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.resolve import check_source, complete_adapter, find_source
from schemas.adapter_base import is_adapter
from schemas.errors import StepError
from schemas.manifest import InputRecord, Manifest
from schemas.plan import Input, Step


@dataclass(frozen=True)
class ReceivedInput:
    """One input of a step."""

    record: InputRecord
    folder: Path
    scan: Scan
    """State of its files when they were compared."""
    digests: dict[str, str]
    """sha256 of its files by path."""
    links: bool
    """Whether links to files count as files: in folders from outside."""


def find_inputs(spec: StepSpec) -> list[ReceivedInput]:
    """Return every input of a step with its folder. Raise StepError if one is not what the plan says.

    A file is hashed, unless it has not changed since it was hashed last (`lineage.artifacts.digest_cache`).
    """
    step, layout = spec.step, spec.layout
    return [
        _find_source_input(step_input, step, layout, list(spec.folders))
        if step_input.source is not None
        else _find_made_input(step_input, spec.inputs[step_input.port], step, layout)
        for step_input in step.inputs
    ]


def _find_source_input(step_input: Input, step: Step, layout: Layout, folders: list[Path]) -> ReceivedInput:
    reference = str(step_input.source)
    source = find_source(reference, layout, folders)
    # First the stamps, then the comparison: what changes in between is seen when the step has ended.
    links = source.key is None or is_adapter(source.folder)
    scan = scan_folder(source.folder, links=links)
    source = find_source(reference, layout, folders)
    if source.digest != step_input.digest:
        raise StepError(f"{step.name}: {reference} changed since the plan was made; run the recipe again")
    check_source(reference, source, layout)
    made = {"step": source.step, "key": source.key, "output": source.output}
    record = InputRecord(port=step_input.port, source=reference, digest=source.digest, type=step_input.type, **made)
    if not links and (manifest := Store(layout).with_key(str(source.key))) is not None:
        return ReceivedInput(record, source.folder, scan, _list_digests(manifest, source.output), links=False)
    digests = DigestCache(layout).digests(source.folder, scan.files, links=True)
    return ReceivedInput(record, source.folder, scan, digests, links=True)


def _find_made_input(step_input: Input, made: MadeInput, step: Step, layout: Layout) -> ReceivedInput:
    store = Store(layout)
    stored = store.output_folder(made.kind, made.key, made.output)
    folder = complete_adapter(stored, layout) if stored.is_dir() else stored
    links = folder != stored
    scan = scan_folder(folder, links=links) if folder.is_dir() else Scan({}, ())
    condition = store.examine(made.kind, made.key)
    if condition.manifest is None or not condition.is_complete:
        what = f"is damaged: {condition.text}" if condition.damages else "is missing"
        advice = "run the recipe again: DVC's cache restores it, or its step runs again"
        raise StepError(f"{step.name}: input {step_input.port}: the artifact of {made.step} {what}; {advice}")
    complete_adapter(stored, layout)  # again: its base was the published one when the files were scanned
    output = condition.manifest.outputs[made.output]
    record = InputRecord(
        port=step_input.port,
        step=made.step,
        key=made.key,
        output=made.output,
        digest=output.digest,
        type=output.type,
    )
    if links:
        return ReceivedInput(record, folder, scan, DigestCache(layout).digests(folder, scan.files, links=True), True)
    return ReceivedInput(record, folder, scan, _list_digests(condition.manifest, made.output), links=False)


def _list_digests(manifest: Manifest, output: str | None) -> dict[str, str]:
    return {file.path: file.sha256 for file in manifest.outputs[str(output)].files}


def verify_unchanged(step: Step, received: list[ReceivedInput]) -> None:
    """Raise StepError if an input changed while the step read it.

    A new change time alone, as a hard link causes it, is accepted if the bytes are the same.
    """
    for one in received:
        if (what := _describe_change(one)) is not None:
            where = one.record.source or one.record.step
            raise StepError(
                f"{step.name}: input {one.record.port} ({where}) changed while the step read it: {what}; nothing was "
                "published; run again"
            )


def _describe_change(one: ReceivedInput) -> str | None:
    try:
        now = scan_folder(one.folder, links=one.links)
    except OSError as error:
        return f"{one.folder}: {error.strerror}"
    if now == one.scan:
        return None
    if names := sorted(now.files.keys() ^ one.scan.files.keys()):
        return f"{names[0]} was {'added' if names[0] in now.files else 'removed'}"
    for name, stamp in now.files.items():
        before = one.scan.files[name]
        if (stamp.inode, stamp.size, stamp.mtime_ns) != (before.inode, before.size, before.mtime_ns):
            return f"{name} was written to"
        if stamp != before and hash_file(one.folder / name, links=one.links)[0] != one.digests[name]:
            return f"the content of {name} differs"
    return f"{now.strange[0]} is not a regular file" if now.strange else None
