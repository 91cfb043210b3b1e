"""What was dropped and why: report.json, report.md and dropped.parquet."""

import json
from collections import Counter
from pathlib import Path
from typing import TypedDict

from learning.curation.decontamination import Evaluation
from learning.curation.ledger import Curation
from learning.data.shards import ShardWriter

REASONS = {
    "malformed": "no stage can use the row",
    "length": "too few or too many characters",
    "exact_duplicate": "an earlier row has the same text",
    "near_duplicate": "an earlier row has almost the same text",
    "quality": "dropped by a quality filter",
    "contaminated": "contains a problem of an evaluation",
    "limit": "beyond the limit",
}
EXAMPLES = 5


class EvaluationCounts(TypedDict):
    """How many rows an evaluation's problems contaminated."""

    name: str
    problems: int
    rows_dropped: int


class CurationCounts(TypedDict):
    """How many rows were given, kept, and dropped by reason."""

    type: str
    rows: int
    kept: int
    dropped: dict[str, int]
    evaluations: list[EvaluationCounts]


def summarise(rows: Curation, evaluations: list[Evaluation]) -> CurationCounts:
    """Return counts of rows given, kept and dropped by reason, and the evaluations searched for."""
    counts = dict(rows.run("select reason, count(*) from dropped group by reason"))
    hits = Counter(
        dict(
            rows.run(
                """select split_part(detail, ': problem ', 1), count(*) from dropped
                   where reason = 'contaminated' group by all"""
            )
        )
    )
    return {
        "type": rows.artifact_type,
        "rows": rows.num_rows,
        "kept": rows.kept(),
        "dropped": {reason: counts.get(reason, 0) for reason in REASONS},
        "evaluations": [
            {"name": e.name, "problems": len(e.problems), "rows_dropped": hits[e.name]} for e in evaluations
        ],
    }


def write_report(rows: Curation, counts: CurationCounts, folder: Path) -> None:
    """Write the three files; every dropped row is in dropped.parquet with its id, reason and detail."""
    ledger = rows.ledger()
    with ShardWriter(folder, ledger.schema, "dropped", whole=True) as writer:
        for batch in ledger:
            writer.write(batch)
    (folder / "report.json").write_text(json.dumps(counts, indent=1) + "\n")
    (folder / "report.md").write_text(_markdown(rows, counts))


def _markdown(rows: Curation, counts: CurationCounts) -> str:
    lines = [
        "# Curation",
        "",
        f"{counts['kept']} of {counts['rows']} rows of type {counts['type']} were kept.",
        "",
        "| reason | rows dropped | |",
        "|---|---:|---|",
        *(f"| {reason} | {number} | {REASONS[reason]} |" for reason, number in counts["dropped"].items()),
        "",
        "| evaluation searched for | problems | rows dropped |",
        "|---|---:|---:|",
        *(f"| {e['name']} | {e['problems']} | {e['rows_dropped']} |" for e in counts["evaluations"]),
    ]
    for reason, number in counts["dropped"].items():
        if number and reason != "limit":
            lines += ["", f"## {reason}", "", *_examples(rows, reason, number)]
    return "\n".join(lines) + "\n"


def _examples(rows: Curation, reason: str, number: int) -> list[str]:
    examples = rows.run(
        "select id, detail from dropped join texts using (row) where reason = $1 order by row limit $2",
        reason,
        EXAMPLES,
    )
    shown = [f"- `{name}`: {' '.join(detail.split())}" for name, detail in examples]
    return shown + ([f"- and {number - len(examples)} more, in dropped.parquet"] if number > len(examples) else [])
