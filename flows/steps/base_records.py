"""The bases of the adapters that a step made: each artifact refers to its base, which is stored once.

A task leaves `base/` as a link to the input that it adapted. The link gives way to a record of the artifact or of the
hub's model that holds the base. A folder from outside (`path:`) becomes an artifact first, one for all adapters over
it: it is then kept, verified and pushed with them.
"""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

from flows.steps.artifacts import log_published
from flows.steps.step_inputs import ReceivedInput
from flows.steps.step_spec import StepSpec
from lineage.artifacts.objects import copy_file
from lineage.artifacts.store import Store
from lineage.digests import digest_of
from lineage.sources.resolve import COMMIT
from schemas.adapter_base import BASE, CONFIG, RECORD, is_adapter, read_record, write_record
from schemas.errors import StepError
from schemas.manifest import InputRecord, Manifest

KIND, OUTPUT = "source", "model"
"""Kind and output of the artifact of a folder from outside."""
SUFFIXES = (".json", ".safetensors", ".gguf", ".jinja", ".txt", ".model", ".tiktoken")
"""Suffixes of the files of a model."""


def record_bases(spec: StepSpec, folder: Path, inputs: list[ReceivedInput]) -> list[InputRecord]:
    """Replace the links to bases in an unpublished artifact by records; return the step's inputs with their keys."""
    by_port = {one.record.port: one.record for one in inputs}
    for link in sorted((folder / "outputs").glob(f"*/{BASE}")):
        if not (link.is_symlink() and is_adapter(link.parent) and (link.parent / RECORD).is_file()):
            continue
        target = link.resolve()
        received = next((one for one in inputs if one.folder.resolve() == target), None)
        if received is None:
            raise StepError(f"{spec.step.name}: the base of its adapter, {target}, is none of its inputs")
        base = by_port[received.record.port]
        if base.key is None and str(base.source).startswith("path:"):
            by_port[base.port] = base = _store_source(spec, received)
        link.unlink()
        _write_base(spec, link.parent, base)
    return list(by_port.values())


def _write_base(spec: StepSpec, adapter: Path, base: InputRecord) -> None:
    """Write the record of a base, and its place into peft's settings: relative to the checkout, or its name."""
    record, revision = read_record(adapter), None
    assert record is not None
    if base.key is None:
        name, _, wanted = str(base.source).removeprefix("hub:").partition("@")
        revision = base.digest if COMMIT.fullmatch(base.digest) else wanted or None
        source = f"hub:{name}@{revision}" if revision else f"hub:{name}"
        record = record.model_copy(update={"source": source, "digest": base.digest})
        place = name
    else:
        manifest = Store(spec.layout).with_key(base.key)
        if manifest is None:
            raise StepError(f"{spec.step.name}: the base of its adapter, {base.key[:16]}, is not here any more")
        output = str(base.output)
        where = {"kind": manifest.kind, "key": manifest.key, "output": output}
        record = record.model_copy(update={**where, "digest": manifest.outputs[output].digest})
        stored = Store(spec.layout).output_folder(manifest.kind, manifest.key, output)
        place = stored.relative_to(spec.layout.root).as_posix()
    write_record(adapter, record)
    config = json.loads((adapter / CONFIG).read_text()) | {"base_model_name_or_path": place, "revision": revision}
    (adapter / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _store_source(spec: StepSpec, received: ReceivedInput) -> InputRecord:
    """Publish a folder from outside as an artifact, unless it is one; return the input with its key."""
    layout, store, base = spec.layout, Store(spec.layout), received.record
    identity = {"kind": KIND, "digest": base.digest}
    key = digest_of(identity)
    manifest = store.find(KIND, key)
    if manifest is None:
        folder = spec.work / f"tmp-{key[:16]}"
        shutil.rmtree(folder, ignore_errors=True)
        for name in received.scan.files:
            if name.endswith(SUFFIXES) and name.rpartition("/")[0].replace(BASE, "").strip("/") == "":
                target = folder / "outputs" / OUTPUT / name
                target.parent.mkdir(parents=True, exist_ok=True)
                copy_file(received.folder / name, target)
        manifest = store.publish(
            folder,
            Manifest(
                key=key,
                kind=KIND,
                identity=identity,
                step=str(base.source),
                recipe=spec.recipe,
                run=spec.run,
                seed=0,
                inputs=(base,),
                outputs=store.describe(folder, {OUTPUT: base.type}),
                started=datetime.now(UTC).isoformat(),
                seconds=0.0,
            ),
        )
        log_published(layout, manifest)
    return base.model_copy(update={"step": manifest.step, "key": manifest.key, "output": OUTPUT})
