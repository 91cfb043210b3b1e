"""Searches compared by what they found with other seeds, and by what they spent: a table of their records."""

import json
import math
from pathlib import Path
from typing import Any

from schemas.errors import StepError


def compare_searches(context: Any) -> dict[str, float]:
    """Write `table.json` with a line for each input, the output `trials` of a search; metrics are of the test seeds.

    A line has the value that chose, the value with the test seeds, and environment steps. Raise StepError unless all
    searches have the same metric and seeds, and took the same environment steps up to one trial of the dearest.
    """
    lines, terms, dearest = [], {}, 0.0
    for name in sorted(name for name in context.inputs if not name.startswith("inputs.")):
        record = read_record(context.input(name), name)
        chosen = [trial["value"] for trial in record["trials"] if trial["number"] == record["best"]]
        tested = record["tested"].get("best", record["tested"].get("baseline"))
        if not tested:
            raise StepError(f"compare_searches: {name} has no `test_seeds`; what chose a setting does not judge it")
        steps = record["environment_steps"]
        lines.append(
            {
                "search": name,
                "trials": len(record["trials"]),
                "environment_steps": steps,
                "chosen_by": chosen[0] if chosen else record["baseline"],
                "tested": math.fsum(tested) / len(tested),
                "settings": record["settings"],
            }
        )
        terms[name] = (record["metric"], record["direction"], record["seeds"], record["test_seeds"])
        dearest = max(dearest, *(trial["environment_steps"] for trial in record["trials"]))
    if len({json.dumps(term) for term in terms.values()}) > 1:
        raise StepError(f"compare_searches: the searches differ in metric or seeds: {terms}")
    spent = [line["environment_steps"] for line in lines]
    if max(spent) - min(spent) >= dearest:
        named = ", ".join(f"{line['search']} {line['environment_steps']}" for line in lines)
        raise StepError(f"compare_searches: environment steps differ by a trial or more: {named}")
    (context.output("result") / "table.json").write_text(json.dumps(lines, indent=1) + "\n")
    metrics = {f"tested.{line['search']}": line["tested"] for line in lines}
    return metrics | {f"chosen_by.{line['search']}": line["chosen_by"] for line in lines}


def read_record(folder: Path, name: str) -> dict[str, Any]:
    """Return the record of a search. Raise StepError if there is none."""
    try:
        return json.loads((folder / "trials.json").read_text())
    except (OSError, ValueError) as error:
        raise StepError(f"inputs.{name}: {folder.name} has no trials.json: name `SEARCH.trials`") from error
