"""The files of an evaluation: results.json, samples.parquet and table.md; equal results give equal bytes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from learning.data.rows import Row

SAMPLES = pa.schema(
    [
        ("model", pa.string()),
        ("id", pa.string()),
        ("family", pa.string()),
        ("sample", pa.int32()),
        ("prompt", pa.string()),
        ("answer", pa.string()),
        ("completion", pa.string()),
        ("truncated", pa.bool_()),
        ("score", pa.float64()),
    ]
)


def write_report(folder: Path, results: Mapping[str, Any], samples: list[Row]) -> None:
    """Write the three files."""
    text = json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    (folder / "table.md").write_text(format_markdown(results), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(samples, schema=SAMPLES), folder / "samples.parquet", compression="zstd")


def format_markdown(results: Mapping[str, Any]) -> str:
    """Return the table, the comparisons and the gates for a reader."""
    level = f"{100 * results['confidence']:g} %"
    families = list(dict.fromkeys(line["family"] for line in results["table"]))
    parts = []
    for metric in dict.fromkeys(line["metric"] for line in results["table"]):
        lines = [line for line in results["table"] if line["metric"] == metric]
        cells = {(x["model"], x["family"]): f"{x['value']:.3f} [{x['low']:.3f}, {x['high']:.3f}]" for x in lines}
        sizes = {x["family"]: x["n"] for x in lines}
        head = [f"{metric}, {level} interval", *(f"{family} (n={sizes.get(family, 0)})" for family in families)]
        rows = [[m, *(cells.get((m, f), "") for f in families)] for m in dict.fromkeys(x["model"] for x in lines)]
        parts.append(format_grid(head, rows))
    if results["comparisons"]:
        head = ["difference on the same problems", "family", "metric", f"gain, {level} interval", "p", "detectable"]
        parts.append(format_grid(head, [format_comparison(line) for line in results["comparisons"]]))
    for role, lines in group_by_role(results.get("roles", {}).get("table", [])).items():
        head = [f"role {role}", "family", "metric", f"value, {level} interval", "turns per episode", "n"]
        parts.append(format_grid(head, [format_role_line(line) for line in lines]))
    for role, lines in group_by_role(results.get("roles", {}).get("comparisons", [])).items():
        head = [f"difference of role {role}", "family", "metric", f"gain, {level} interval", "p", "detectable"]
        parts.append(format_grid(head, [format_comparison(line) for line in lines]))
    if results.get("weights"):
        head = ["weights", "against", "measure", "mean over tensors", "tensors"]
        parts.append(format_grid(head, [format_weight_line(line) for line in results["weights"]]))
    if results.get("calls"):
        rows = [[name, str(c["calls"]), str(c["longest_call"])] for name, c in results["calls"].items()]
        parts.append(format_grid(["calls by the solver", "calls", "longest, characters"], rows))
    for gate in results["gates"]:
        parts.append(f"- gate {'passed' if gate['passed'] else 'FAILED'}: {gate['text']}\n")
    return "\n".join(parts)


def group_by_role(lines: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the lines of each role."""
    return {role: [line for line in lines if line["role"] == role] for role in dict.fromkeys(x["role"] for x in lines)}


def format_role_line(line: Row) -> list[str]:
    """Return cells of what a role of one team earned."""
    value = f"{line['value']:.3f} [{line['low']:.3f}, {line['high']:.3f}]"
    return [line["model"], line["family"], line["metric"], value, f"{line['turns']:.2f}", str(line["n"])]


def format_comparison(line: Row) -> list[str]:
    """Return cells of one comparison."""
    gain = f"{line['value']:+.3f} [{line['low']:+.3f}, {line['high']:+.3f}]"
    detectable = "" if line["detectable"] is None else f"{line['detectable']:.3f}"
    pair = f"{line['model']} − {line['against']}"
    return [pair, line["family"], line["metric"], gain, f"{line['p_value']:.2g}", detectable]


def format_weight_line(line: Row) -> list[str]:
    """Return cells of one measure of one model's weights."""
    value = "—" if line["value"] is None else f"{line['value']:.4g}"
    return [line["model"], line["against"], line["measure"], value, str(line["tensors"])]


def format_grid(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
