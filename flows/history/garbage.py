"""`posttrain gc`: list what a checkout does not need, and remove it on request; safe during active runs."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.execution.active_runs import prevent_runs
from flows.history.needed_artifacts import find_needed, list_keys
from flows.processes.locks import lock_if_free
from lineage.artifacts.reclaim import (
    Garbage,
    count_freed_bytes,
    find_temporaries,
    find_unneeded_objects,
    remove_garbage,
)
from lineage.audit import log as audit_log
from lineage.layout import Layout
from lineage.records import Record, read_records
from lineage.reports.formatting import format_size
from lineage.retention.keep import add_ancestors, find_best, find_pinned, find_promoted, refuse_damaged, refuse_missing
from lineage.retention.pins import pin_artifacts, read_pins, unpin_artifacts
from lineage.sources.converted_bases import find_unneeded_bases
from lineage.tracing.ancestry import trace
from lineage.verification.audit_check import check_log
from schemas.errors import PlanError


@dataclass(frozen=True)
class Policy:
    """What to keep besides promoted and pinned artifacts and their ancestors."""

    last: int
    """Number of latest runs whose artifacts stay."""
    keep: int = 0
    """Number of best artifacts by the metric `by` that stay, with the runs that made them."""
    by: str = ""
    """Metric that ranks artifacts for `keep`."""
    champions: int | None = None
    """Number of earlier models of each champion that stay; None: all possible targets of `rollback`."""
    given_up: tuple[str, ...] = ()
    """Runs that will not be resumed; `all`: every run."""


@dataclass(frozen=True)
class Clearance:
    """Artifacts that stay, with reasons, and what can be removed."""

    needed: list[tuple[Record, str]]
    garbage: Garbage
    in_use: frozenset[Path]
    """Work folders of steps that are running; they stay."""


def collect_garbage(layout: Layout, policy: Policy, console: Console, *, yes: bool, as_json: bool) -> None:
    """Print what can be removed and how many bytes that frees; remove it with `yes`.

    Raise PlanError if the metric or a run is unknown, if the audit log or a manifest to keep does not verify, or the
    registry does not answer.
    """
    with prevent_runs(layout) if yes else nullcontext():
        clearance = find_garbage(layout, policy)
        size = count_freed_bytes(clearance.garbage.paths)
        if yes:
            _remove_garbage(layout, clearance, size, policy)
    if as_json:
        console.print_json(data={**_as_json(clearance), "bytes": size, "removed": yes})
    else:
        _print_clearance(clearance, size, console, yes)


def find_garbage(layout: Layout, policy: Policy) -> Clearance:
    """Return what stays under a policy and what can be removed. Raise PlanError."""
    log = check_log(layout)
    if log.problems:
        what = f"{log.problems[0]}; see: posttrain lineage --verify"
        raise PlanError(f"the audit log does not verify, so nothing is removed: {what}")
    records = read_records(layout)
    reasons = find_promoted(layout, policy.champions) | find_pinned(layout)
    refuse_missing(log, records, reasons)
    planned = find_needed(layout, log, policy.last, policy.given_up)
    if policy.keep:
        leaders = find_best(records, policy.by, policy.keep)
        makers = {record["run"]: leaders[record["key"]] for record in records if record["key"] in leaders}
        reasons = leaders | reasons
        planned = {key: why for run, why in makers.items() for key in list_keys(layout, log, run)} | planned
    needed = add_ancestors(records, planned | reasons)
    stay = [(record, needed[record["key"]]) for record in records if record["key"] in needed]
    refuse_damaged(layout, log, (record for record, _ in stay))
    go = [record for record in records if record["key"] not in needed]
    works = [p for p in sorted((layout.state / "work").glob("*")) if p.is_dir() and p.name not in planned]
    in_use = frozenset(work for work in works if _is_used(work))
    objects = tuple(find_unneeded_objects(layout, [record for record, _ in stay], go))
    outputs = (Path(record["folder"], "outputs", name) for record, _ in stay for name in record["outputs"])
    bases = tuple(find_unneeded_bases(layout, outputs))
    unused = tuple(work for work in works if work not in in_use)
    garbage = Garbage(tuple(go), objects, tuple(find_temporaries(layout)), unused, bases)
    return Clearance(stay, garbage, in_use)


def pin_target(
    layout: Layout, target: str | None, console: Console, *, remove: bool = False, as_json: bool = False
) -> None:
    """Pin or unpin a target; without a target, list the pins. Raise UnknownTarget."""
    if target is None and as_json:
        print(json.dumps([{"key": key, **pinned} for key, pinned in read_pins(layout).items()], indent=1))
        return
    if target is None:
        for key, pinned in read_pins(layout).items():
            console.print(Text(f"{key[:16]}  {pinned['word']}, since {pinned['since']}"))
        return
    keys = trace(layout, target).target.keys
    unpin_artifacts(layout, keys) if remove else pin_artifacts(layout, keys, target)
    console.print(Text(f"{'unpinned' if remove else 'pinned'}: {', '.join(key[:16] for key in keys)}"))


def _is_used(work: Path) -> bool:
    if not (work / "lock").is_file():
        return False
    with lock_if_free(work / "lock") as free:
        return not free


def _remove_garbage(layout: Layout, clearance: Clearance, size: int, policy: Policy) -> None:
    """Remove garbage, after an entry in the audit log that explains every removal."""
    garbage = clearance.garbage
    audit_log.append(
        layout,
        "gc",
        artifacts=[record["key"] for record in garbage.artifacts],
        objects=len(garbage.objects),
        works=[work.name for work in garbage.works],
        bytes=size,
        kept=len(clearance.needed),
        policy=asdict(policy),
    )
    remove_garbage(layout, garbage)
    for work in garbage.works:
        with lock_if_free(work / "lock") as free:
            if free or not (work / "lock").exists():
                shutil.rmtree(work, ignore_errors=True)


def _as_json(clearance: Clearance) -> dict[str, object]:
    garbage = clearance.garbage
    return {
        "kept": [{**_describe_record(record), "why": why} for record, why in clearance.needed],
        "artifacts": [
            {**_describe_record(record), "bytes": count_freed_bytes([Path(record["folder"])])}
            for record in garbage.artifacts
        ],
        "objects": len(garbage.objects),
        "temporaries": len(garbage.temporaries),
        "works": [work.name for work in garbage.works],
        "bases": len(garbage.bases),
        "in_use": [work.name for work in sorted(clearance.in_use)],
    }


def _describe_record(record: Record) -> dict[str, str]:
    return {name: record[name] for name in ("step", "kind", "key", "recipe", "run")}


def _print_clearance(clearance: Clearance, size: int, console: Console, yes: bool) -> None:
    garbage = clearance.garbage
    table = Table(title="Artifacts that nothing needs", title_justify="left")
    for column in ("step", "kind", "key", "made by run", "size"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for record in garbage.artifacts:
        names = (Text(record["step"]), record["kind"], record["key"][:16], record["run"])
        table.add_row(*names, format_size(sum(f["size"] for o in record["outputs"].values() for f in o["files"])))
    if garbage.artifacts:
        console.print(table)
    counts = (
        (len(garbage.artifacts), "artifacts"),
        (len(garbage.objects), "files of DVC's cache that only they use"),
        (len(garbage.works), "folders of unfinished steps that no run can resume"),
        (len(garbage.temporaries), "temporary files left in DVC's cache"),
        (len(garbage.bases), "converted bases of adapters"),
    )
    what = ", ".join(f"{count} {noun}" for count, noun in counts if count) or "nothing"
    did = "removed" if yes else "removable"
    console.print(f"{did}: {what}; {len(clearance.needed)} artifacts stay", highlight=False, soft_wrap=True)
    did = "freed" if yes else "would free"
    more = "" if yes or not size else "; remove it with --yes"
    console.print(f"{did} {format_size(size)} ({size} bytes){more}", highlight=False, soft_wrap=True)
