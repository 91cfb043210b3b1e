"""The inputs of a step: found and compared with the plan before it starts, and checked again after it has ended."""

from dataclasses import dataclass
from pathlib import Path

from flows.steps.step_spec import MadeInput, StepSpec
from lineage.artifacts.digest_cache import DigestCache, Scan, hash_file, scan_folder
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.resolve import check_source, find_source
from schemas.errors import StepError
from schemas.manifest import InputRecord, Manifest
from schemas.plan import Input, Step


@dataclass(frozen=True)
class ReceivedInput:
    """One input of a step."""

    record: InputRecord
    folder: Path
    seen: Scan
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
        _find_source_input(given, step, layout, list(spec.folders))
        if given.source is not None
        else _find_made_input(given, spec.inputs[given.port], step, layout)
        for given in step.inputs
    ]


def _find_source_input(given: Input, step: Step, layout: Layout, folders: list[Path]) -> ReceivedInput:
    reference = str(given.source)
    source = find_source(reference, layout, folders)
    # First the stamps, then the comparison: what changes in between is seen when the step has ended.
    seen = scan_folder(source.folder, links=source.key is None)
    source = find_source(reference, layout, folders)
    if source.digest != given.digest:
        raise StepError(f"{step.name}: {reference} changed since the plan was made; run the recipe again")
    check_source(reference, source, layout)
    made = {"step": source.step, "key": source.key, "output": source.output}
    record = InputRecord(port=given.port, source=reference, digest=source.digest, type=given.type, **made)
    if source.key is not None and (manifest := Store(layout).with_key(source.key)) is not None:
        return ReceivedInput(record, source.folder, seen, _list_digests(manifest, source.output), links=False)
    digests = DigestCache(layout).digests(source.folder, seen.files, links=True)
    return ReceivedInput(record, source.folder, seen, digests, links=True)


def _find_made_input(given: Input, made: MadeInput, step: Step, layout: Layout) -> ReceivedInput:
    store = Store(layout)
    folder = store.output_folder(made.kind, made.key, made.output)
    seen = scan_folder(folder) if folder.is_dir() else Scan({}, ())
    condition = store.examine(made.kind, made.key)
    if condition.manifest is None or not condition.is_complete:
        what = f"is damaged: {condition.text}" if condition.damages else "is missing"
        advice = "run the recipe again: what DVC's cache holds is restored, the rest is made again"
        raise StepError(f"{step.name}: input {given.port}: the artifact of {made.step} {what}; {advice}")
    output = condition.manifest.outputs[made.output]
    record = InputRecord(
        port=given.port,
        step=made.step,
        key=made.key,
        output=made.output,
        digest=output.digest,
        type=output.type,
    )
    return ReceivedInput(record, folder, seen, _list_digests(condition.manifest, made.output), links=False)


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
                "published, and what it had made so far is not used; run again"
            )


def _describe_change(one: ReceivedInput) -> str | None:
    try:
        now = scan_folder(one.folder, links=one.links)
    except OSError as error:
        return f"{one.folder}: {error.strerror}"
    if now == one.seen:
        return None
    if names := sorted(now.files.keys() ^ one.seen.files.keys()):
        return f"{names[0]} was {'added' if names[0] in now.files else 'removed'}"
    for name, stamp in now.files.items():
        before = one.seen.files[name]
        if (stamp.inode, stamp.size, stamp.mtime_ns) != (before.inode, before.size, before.mtime_ns):
            return f"{name} was written to"
        if stamp != before and hash_file(one.folder / name, links=one.links)[0] != one.digests[name]:
            return f"the content of {name} differs"
    return f"{now.strange[0]} is not a regular file" if now.strange else None
