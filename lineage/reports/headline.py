"""The first lines of a report: improvements with their size, gates that failed and why, and the cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lineage.reports.formatting import format_duration, format_number
from lineage.reports.spending import Cost
from schemas.base import JsonObject

ALL = "all"
ROLES = {"parent": " (its parent)", "base": " (its base)", "gate": " (as a gate asks)", "first": ""}
"""What an evaluation's other model is to the compared one."""
Tone = Literal["good", "bad", "soft"]


@dataclass(frozen=True)
class Headline:
    """One line, and how it is shown."""

    text: str
    tone: Tone


def make_headlines(
    comparisons: Mapping[str, Iterable[JsonObject]], gates: Iterable[JsonObject], spent: Cost | None
) -> list[Headline]:
    """Return a line per comparison over all problems, then per gate that did not pass, then the cost.

    `comparisons` are those of each evaluation, along lineage (`select_comparisons`).
    """
    compared = [
        _describe_difference(step, line)
        for step, lines in comparisons.items()
        for line in lines
        if line["family"] == ALL
    ]
    if not compared:
        compared = [Headline("No evaluation of this run compares two models.", "soft")]
    failed = [
        Headline(f"Gate of {gate['step']}: {gate['outcome']}. {' '.join(gate['texts'])}", "bad")
        for gate in gates
        if gate["good"] is not True
    ]
    return [*compared, *failed, Headline(_describe_cost(spent), "soft")]


def _describe_difference(step: str, line: JsonObject) -> Headline:
    low, high = line["low"], line["high"]
    if low > 0:
        verdict, tone = "higher", "good"
    elif high < 0:
        verdict, tone = "lower", "bad"
    else:
        verdict, tone = "no difference shown", "soft"
    numbers = f"{line['value']:+.3f} ({low:+.3f} to {high:+.3f}, {line['n']} problems)"
    pair = f"{line['model']} − {line['against']}{ROLES[line['relation']]}"
    return Headline(f"{step}: {line['metric']} of {pair}: {numbers}: {verdict}", tone)


def _describe_cost(spent: Cost | None) -> str:
    if spent is None:
        return "Nothing was spent in this run: every step was cached."
    parts = [f"{format_duration(spent.seconds)} of steps", f"{format_number(spent.core_seconds)} core-seconds"]
    parts += [f"{format_number(spent.gpu_seconds)} GPU-seconds"] if spent.gpu_seconds else []
    parts += [f"{format_number(spent.tokens)} tokens"] if spent.tokens else []
    return f"Spent in this run: {', '.join(parts)}."
