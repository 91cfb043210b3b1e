"""Rounds of training that begin again from their base where the last round has brought too little."""

import json
import shutil
from pathlib import Path
from typing import Any

from schemas.errors import StepError


def restart_on_plateau(
    context: Any, *, metric: str = "accuracy", before: str = "before", after: str = "after", min_gain: float = 0.0
) -> dict[str, float | bool]:
    """Write the policy that a round of training begins from: `base` after a plateau, else `previous`.

    The inputs are these two policies and `exam`, the report of an evaluation of the models `before` and `after` the
    previous round. It was a plateau if the `metric` over all problems rose by less than `min_gain`. After one the round
    trains the base on what the best model so far has found, as in the periodic retraining of BFS-Prover-V2 (Xin et al.
    2025). The output is `model`. Return the gain and whether training restarts. Raise StepError for a report without
    these models or this metric.
    """
    gain = measure_gain(context.input("exam"), metric, before, after)
    restarts = gain < min_gain
    source, target = Path(context.input("base" if restarts else "previous")), Path(context.output("model"))
    shutil.copytree(source, target, dirs_exist_ok=True)
    return {"gain": gain, "restarts": restarts}


def measure_gain(report: Path, metric: str, before: str, after: str) -> float:
    """Return by how much a metric over all problems differs between two models of an evaluation's report."""
    table = json.loads((report / "results.json").read_text(encoding="utf-8"))["table"]
    values = {line["model"]: line["value"] for line in table if (line["metric"], line["family"]) == (metric, "all")}
    if missing := [name for name in (before, after) if values.get(name) is None]:
        raise StepError(
            f"restart_on_plateau: the report has no {metric} of `{missing[0]}` over all problems; it has models "
            f"{', '.join(sorted(values)) or 'of other metrics only'}"
        )
    return values[after] - values[before]
