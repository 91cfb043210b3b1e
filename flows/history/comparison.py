"""`posttrain compare`: a page with what differs between runs: settings, evaluations with intervals, cost."""

import json
from collections.abc import Sequence
from pathlib import Path

from flows.execution.results import ScoredRow, read_scores
from flows.execution.run_log import read_promotion
from flows.history.diff import Side, compute_difference_interval, read_side
from lineage.layout import Layout
from lineage.reports.descent import select_comparisons
from lineage.reports.headline import ALL
from lineage.reports.report import collect_gate_rows, make_finder, render_page
from schemas.atomic_write import write_text_atomically
from schemas.base import JsonObject
from schemas.errors import PlanError

MISSING = "–"
COSTS = {"seconds of steps": "seconds", "core-seconds": "cpu_seconds", "GPU-seconds": "gpu_seconds", "tokens": "tokens"}


def write_comparison(content: JsonObject, file: Path) -> None:
    """Write the page of what `compare_runs` returned."""
    write_text_atomically(file, render_page("comparison.html.j2", content))


def compare_runs(layout: Layout, runs: Sequence[str]) -> JsonObject:
    """Return what differs between runs, each compared with the first. Raise PlanError for fewer than two runs."""
    if len(set(runs)) < 2 or len(set(runs)) != len(runs):
        raise PlanError("compare takes two or more different runs; list them: posttrain runs")
    sides = [read_side(run, layout) for run in runs]
    return {
        "runs": [_describe_run(side) for side in sides],
        "settings": compare_settings(sides),
        "keys": _list_changed_steps(sides),
        "scores": compare_scores(sides),
        "gains": compare_gains(sides, layout),
        "gates": compare_gates(sides, layout),
        "promotions": [read_promotion(layout, side.run) for side in sides],
        "costs": {name: [_sum_cost(side, of) for side in sides] for name, of in COSTS.items()},
    }


def compare_settings(sides: Sequence[Side]) -> dict[str, list[str]]:
    """Return the settings that are not the same in all runs, by dotted name, with the value of each run as text."""
    flat = [_flatten({"profile": side.plan.profile, **side.plan.resolved}) for side in sides]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = {name: [each.get(name, MISSING) for each in flat] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def compare_scores(sides: Sequence[Side]) -> list[JsonObject]:
    """Return a row per number of an evaluation, with a cell per run: its interval, and that of the difference."""
    tables = [_index_scores(side) for side in sides]
    rows: list[JsonObject] = []
    for place in dict.fromkeys(place for table in tables for place in table):
        first = tables[0].get(place)
        cells = [_make_cell(table.get(place), first, is_first=table is tables[0]) for table in tables]
        rows.append(dict(zip(("step", "model", "metric", "family"), place, strict=True)) | {"cells": cells})
    return rows


def compare_gains(sides: Sequence[Side], layout: Layout) -> list[JsonObject]:
    """Return a row per model and metric, with a cell per run: the gain over the models that it was trained from."""
    tables = [_index_gains(side, layout) for side in sides]
    rows: list[JsonObject] = []
    for place in dict.fromkeys(place for table in tables for place in table):
        cells = [table.get(place, []) for table in tables]
        rows.append(dict(zip(("step", "model", "metric"), place, strict=True)) | {"cells": cells})
    return rows


def compare_gates(sides: Sequence[Side], layout: Layout) -> list[JsonObject]:
    """Return a row per gate, with a cell per run: its outcome and reason, None where the evaluation did not finish."""
    tables: list[dict[tuple[str, int], JsonObject]] = []
    for side in sides:
        table: dict[tuple[str, int], JsonObject] = {}
        for row in collect_gate_rows(side.plan, side.manifests, layout):
            number = sum(step == row["step"] for step, _ in table)
            tone = "soft" if row["good"] is None else "good" if row["good"] else "bad"
            table[row["step"], number] = {"outcome": row["outcome"], "texts": row["texts"], "tone": tone}
        tables.append(table)
    places = dict.fromkeys(place for table in tables for place in table)
    return [{"step": step, "cells": [table.get((step, number)) for table in tables]} for step, number in places]


def _index_gains(side: Side, layout: Layout) -> dict[tuple[str, str, str], list[JsonObject]]:
    """Return the paired differences of models from their parents over all problems, by step, model and metric."""
    find, gains = make_finder(side.manifests, layout), {}
    for name, manifest in side.manifests.items():
        for line in select_comparisons(manifest, find) if manifest.kind == "evaluate" else ():
            if line["relation"] == "parent" and line["family"] == ALL:
                tone = "good" if line["low"] > 0 else "bad" if line["high"] < 0 else "soft"
                gains.setdefault((name, line["model"], line["metric"]), []).append(line | {"tone": tone})
    return gains


def _index_scores(side: Side) -> dict[tuple[str, str, str, str], ScoredRow]:
    """Return the numbers of a run's evaluations by step, model, metric and family."""
    return {
        (name, row["model"], row["metric"], row["family"]): row
        for name, manifest in side.manifests.items()
        for row in read_scores(manifest)
    }


def _make_cell(row: ScoredRow | None, first: ScoredRow | None, *, is_first: bool) -> JsonObject | None:
    if row is None:
        return None
    gain = None if is_first or first is None else compute_difference_interval(first, row)
    tone = "soft" if gain is None or gain[0] <= 0.0 <= gain[1] else "good" if gain[0] > 0.0 else "bad"
    return {"value": row["value"], "low": row["low"], "high": row["high"], "gain": gain, "tone": tone}


def _describe_run(side: Side) -> JsonObject:
    states = [str(state["state"]) for state in side.states.values()]
    started = min((m.started for n, m in side.manifests.items() if side.states[n]["state"] == "done"), default=None)
    return {
        "name": side.run,
        "recipe": side.plan.recipe,
        "profile": side.plan.profile,
        "started": started,
        "counts": {state: states.count(state) for state in dict.fromkeys(states)},
    }


def _list_changed_steps(sides: Sequence[Side]) -> list[str]:
    keys = [{step.name: step.key for step in side.plan.steps} for side in sides]
    names = dict.fromkeys(name for each in keys for name in each)
    return [name for name in names if len({each.get(name) for each in keys}) > 1]


def _sum_cost(side: Side, what: str) -> float:
    return sum(getattr(m, what) for n, m in side.manifests.items() if side.states[n]["state"] == "done")


def _flatten(value: object, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        names = ((f"{prefix}.{key}" if prefix else str(key), item) for key, item in pairs)
        return {name: text for below, item in names for name, text in _flatten(item, below).items()}
    return {prefix: value if isinstance(value, str) else json.dumps(value)}
