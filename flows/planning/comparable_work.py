"""Whether a step that ran before did the same amount of work as a step that is planned."""

from dataclasses import dataclass

from flows.planning.difference import format_value, list_changes
from lineage.catalogue.index import Index
from lineage.records import GivenRecord, Record
from schemas.plan import Input, Plan, Step

COSTLESS = frozenset(
    {
        "adam_beta1",
        "adam_beta2",
        "beta",
        "coef",
        "decay_type",
        "epsilon",
        "epsilon_high",
        "epsilon_low",
        "gate",
        "label_smoothing",
        "learning_rate",
        "learning_rate_factor",
        "lora_alpha",
        "lora_dropout",
        "lr_scheduler_type",
        "max_grad_norm",
        "min_lr_ratio",
        "mixup_alpha",
        "num_decay_steps",
        "shuffle",
        "sync_steps",
        "use_rslora",
        "warmup_ratio",
        "warmup_steps",
        "weight",
        "weight_decay",
    }
)
"""Settings that change a result and hardly its cost; a difference in any other one is other work."""
LARGER = 1.25
"""Largest ratio of the sizes of two inputs that count as equally large."""


@dataclass(frozen=True)
class Comparison:
    """An earlier step next to a planned one."""

    differences: list[str]
    """What is other work, as `max_steps: 2 → 200`; empty: the steps are comparable."""
    unknown_inputs: list[str]
    """Ports that receive something else, whose size is not known before the run."""


def compare_work(record: Record, step: Step, plan: Plan, index: Index) -> Comparison:
    """Return in what the work of an earlier step and of a planned one differ: settings, inputs and their sizes."""
    before, now = {one["port"]: one for one in record["inputs"]}, {one.port: one for one in step.inputs}
    differences = [
        f"{path}: {format_value(old)} → {format_value(new)}"
        for path, old, new in list_changes(record["identity"]["settings"], step.identity["settings"])
        if path not in now and not COSTLESS & set(path.split("."))
    ]
    differences += [f"input {port}" for port in sorted(before.keys() ^ now.keys())]
    unknown: list[str] = []
    for port in sorted(before.keys() & now.keys()):
        ratio = _compare_sizes(before[port], now[port], plan, index)
        if ratio is None:
            unknown.append(port)
        elif not 1 / LARGER <= ratio <= LARGER:
            differences.append(f"{port}: {ratio:.2g} times as large")
    return Comparison(differences, unknown)


def _compare_sizes(before: GivenRecord, now: Input, plan: Plan, index: Index) -> float | None:
    """Return the ratio of the new input's bytes to the old one's; None if one is not known."""
    if not now.steps:
        return 1.0 if now.digest == before["digest"] else None
    made = index.record(plan.step(now.steps[0]).key)
    if made is None or now.output is None:
        return None
    if made["outputs"][now.output]["digest"] == before["digest"]:
        return 1.0
    earlier = index.record(before["key"]) if before["key"] else None
    if earlier is None or before["output"] is None:
        return None
    old, new = _sum_sizes(earlier, before["output"]), _sum_sizes(made, now.output)
    return new / old if old else None


def _sum_sizes(record: Record, output: str) -> int:
    return sum(file["size"] for file in record["outputs"][output]["files"])
