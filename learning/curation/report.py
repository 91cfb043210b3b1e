"""What was dropped and why: report.json, report.md and dropped.parquet."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from learning.curation.decontamination import Evaluation
from learning.curation.ledger import Curation
from learning.data.shards import ShardWriter
from schemas.base import JsonObject

REASONS = {
    "malformed": "no stage can use the row",
    "length": "too few or too many characters",
    "exact_duplicate": "an earlier row has the same text",
    "near_duplicate": "an earlier row has almost the same text",
    "quality": "dropped by a quality filter",
    "similar": "the embedding is close to that of an earlier row",
    "contaminated": "contains a problem of an evaluation",
    "score": "a score outside of its limits, or none",
    "diversity": "not among the rows that cover the others",
    "limit": "beyond the limit",
}
EXAMPLES = 5


class YieldLine(TypedDict):
    """Rows before and after one step of the curation, and those that it dropped by reason, which add up."""

    step: str
    rows_in: int
    dropped: int
    rows_out: int
    reasons: dict[str, int]
    changed: int
    """Rows that the step changed."""


class YieldTable:
    """Rows before and after each step of a curation, in order."""

    def __init__(self, rows: Curation) -> None:
        self.rows, self.left = rows, rows.num_rows
        self.lines: list[YieldLine] = []

    def add(self, step: str, reasons: Mapping[str, int] | None = None) -> None:
        """Add a line for what was dropped since the last one; without `reasons` all has one reason."""
        left = self.rows.kept()
        self._add(step, self.left - left, {} if reasons is None else reasons)

    def add_parts(self, parts: Mapping[str, int]) -> None:
        """Add a line for each of the parts of a step, with the rows that each dropped."""
        for step, dropped in parts.items():
            self._add(step, dropped, {})

    def add_changes(self, step: str, changed: int, spans: Mapping[str, int]) -> None:
        """Add a line for a step that changed rows and dropped none; `spans` counts the changes by kind."""
        line = YieldLine(
            step=step, rows_in=self.left, dropped=0, rows_out=self.left, reasons=dict(spans), changed=changed
        )
        self.lines.append(line)

    def _add(self, step: str, dropped: int, reasons: Mapping[str, int]) -> None:
        kept = {reason: number for reason, number in reasons.items() if number}
        rows_out = self.left - dropped
        line = YieldLine(step=step, rows_in=self.left, dropped=dropped, rows_out=rows_out, reasons=kept, changed=0)
        self.lines.append(line)
        self.left = rows_out


class EvaluationCounts(TypedDict):
    """How many rows an evaluation's problems contaminated."""

    name: str
    problems: int
    rows_dropped: int


class CurationCounts(TypedDict):
    """How many rows were given, kept, and dropped by reason and by step; distributions of scores, and topics."""

    type: str
    rows: int
    kept: int
    dropped: dict[str, int]
    evaluations: list[EvaluationCounts]
    steps: list[YieldLine]
    scores: list[JsonObject]
    topics: list[JsonObject]


def summarise(
    rows: Curation,
    evaluations: list[Evaluation],
    table: YieldTable,
    scores: list[JsonObject],
    topics: list[JsonObject],
) -> CurationCounts:
    """Return counts of rows given, kept and dropped by reason and by step, and the evaluations searched for."""
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
        "steps": table.lines,
        "scores": scores,
        "topics": topics,
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
        *format_yield(counts["steps"]),
        "",
        "| reason | rows dropped | |",
        "|---|---:|---|",
        *(f"| {reason} | {number} | {REASONS[reason]} |" for reason, number in counts["dropped"].items()),
        "",
        "| evaluation searched for | problems | rows dropped |",
        "|---|---:|---:|",
        *(f"| {e['name']} | {e['problems']} | {e['rows_dropped']} |" for e in counts["evaluations"]),
    ]
    lines += [line for score in counts["scores"] for line in _format_score(score)]
    for reason, number in counts["dropped"].items():
        if number and reason not in ("limit", "diversity"):
            lines += ["", f"## {reason}", "", *_examples(rows, reason, number)]
    return "\n".join(lines) + "\n"


def _format_score(score: JsonObject) -> list[str]:
    """Return the distribution of a score and its limits, as lines of Markdown."""
    limits = " to ".join("any" if score[end] is None else f"{score[end]:.6g}" for end in ("low", "high"))
    return [
        "",
        f"Score {score['name']}: {score['rows']} rows, {score['unscored']} without a score, kept from {limits}.",
        "",
        f"| {' | '.join(score['quantiles'])} |",
        f"|{'---:|' * len(score['quantiles'])}",
        f"| {' | '.join(f'{value:.6g}' for value in score['quantiles'].values())} |",
    ]


def format_yield(lines: Sequence[YieldLine]) -> list[str]:
    """Return the table of rows before and after each step, as lines of Markdown."""
    return [
        "| step | rows in | dropped | rows out | by reason |",
        "|---|---:|---:|---:|---|",
        *(
            f"| {line['step']} | {line['rows_in']} | {line['dropped']} | {line['rows_out']} | {_describe(line)} |"
            for line in lines
        ),
    ]


def describe_yield(lines: Sequence[YieldLine]) -> str:
    """Return in a line how many rows each step left that dropped or changed some."""
    parts = [f"{line['step']} {line['rows_out']}" for line in lines if line["dropped"]]
    changed = [f"{line['step']} changed {line['changed']} rows" for line in lines if line["changed"]]
    rows = f"{lines[0]['rows_in']} rows" if lines else "no rows"
    return ", ".join([" → ".join([rows, *parts]) if parts else f"{rows}, none dropped", *changed])


def _describe(line: YieldLine) -> str:
    """Return the reasons of a step with their rows, or what it changed."""
    reasons = ", ".join(f"{reason} {number}" for reason, number in line["reasons"].items())
    return f"{line['changed']} rows changed: {reasons}" if line["changed"] else reasons


def _examples(rows: Curation, reason: str, number: int) -> list[str]:
    examples = rows.run(
        "select id, detail from dropped join texts using (row) where reason = $1 order by row limit $2",
        reason,
        EXAMPLES,
    )
    shown = [f"- `{name}`: {' '.join(detail.split())}" for name, detail in examples]
    return shown + ([f"- and {number - len(examples)} more, in dropped.parquet"] if number > len(examples) else [])
