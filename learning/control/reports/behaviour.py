"""Policies that were trained on data, against the one that made the data, by a report."""

import json
from typing import Any

from schemas.errors import StepError


def judge_against_behaviour(context: Any, *, behaviour: str, metric: str = "mean_return") -> dict[str, bool | float]:
    """Write which lines of the input `report` beat the line `behaviour`, and return it by name as `beats_behaviour`.

    A policy beats it if the whole interval of their paired difference is above 0, so that equal ones do not. `share`
    is the share of policies that do. Raise StepError for a report without that line.
    """
    results = json.loads((context.input("report") / "results.json").read_text())
    found = [
        line
        for line in results["comparisons"]
        if (line["against"], line["metric"], line["family"]) == (behaviour, metric, "all")
    ]
    if not found:
        raise StepError(
            f"behaviour: the report compares nothing with `{behaviour}` by {metric}; let it be the first name in "
            "`policies` or `models` of the evaluation"
        )
    judged = {line["model"]: {**line, "beats_behaviour": line["low"] > 0} for line in found}
    (context.output("result") / "behaviour.json").write_text(json.dumps(judged, indent=1, sort_keys=True) + "\n")
    beats = {f"beats_behaviour.{name}": line["beats_behaviour"] for name, line in judged.items()}
    return {**beats, "share": sum(beats.values()) / len(beats)}
