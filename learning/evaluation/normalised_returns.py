"""Returns of models on the scale of LMRL-Gym: 0 for the lowest, 50 for the mean of the data, 100 for the highest."""

import json
from typing import Any

from learning.data.rows import Row, read_metadata, read_rows
from learning.evaluation.evaluation import ALL
from schemas.errors import StepError


def normalised_returns(context: Any, *, low: float, high: float) -> dict[str, float]:
    """Write normalised.json: the mean return of every model of a report, by family, on the scale of the data.

    Inputs `data` (episodes with `rewards`) and `report`, whose metrics include `mean_score`; `low` and `high` are the
    lowest and the highest return of an episode. Families of the report that the data lack are compared with all data.
    Raise StepError if the data have no rewards, their mean is no value between the two, or the report has no such
    metric.
    """
    rows = read_rows(context.input("inputs.data"), "chat")
    means = {
        family: average_return([row for row in rows if family in (ALL, row["family"])], low, high)
        for family in dict.fromkeys((ALL, *(row["family"] for row in rows if row["family"])))
    }
    results = json.loads((context.input("inputs.report") / "results.json").read_text(encoding="utf-8"))
    lines = [line for line in results["table"] if line["metric"] == "mean_score"]
    if not lines:
        raise StepError("normalised_returns: the report has no metric mean_score; add it to `metrics`")
    table = [
        {
            "model": line["model"],
            "family": line["family"],
            "value": normalise_return(line["value"], low, means.get(line["family"], means[ALL]), high),
        }
        for line in lines
    ]
    text = json.dumps({"data": means, "table": table}, indent=1, sort_keys=True) + "\n"
    (context.output("report") / "normalised.json").write_text(text, encoding="utf-8")
    return {f"normalised.{line['model']}": line["value"] for line in table if line["family"] == ALL}


def normalise_return(value: float, low: float, middle: float, high: float) -> float:
    """Return 0 at `low`, 50 at `middle` and 100 at `high`, linear between them and beyond."""
    below = value < middle
    return 50 * (value - low) / (middle - low) if below else 50 + 50 * (value - middle) / (high - middle)


def average_return(rows: list[Row], low: float, high: float) -> float:
    """Return the mean sum of the rewards of episodes. Raise StepError unless it lies between the two bounds."""
    given = [read_metadata(row).get("rewards") for row in rows]
    sums = [float(sum(one)) if isinstance(one, list) else float(one) for one in given if one is not None]
    if not sums:
        raise StepError("normalised_returns: no row of the data has `rewards` in its metadata")
    mean = sum(sums) / len(sums)
    if not low < mean < high:
        raise StepError(
            f"normalised_returns: the data have a mean return of {mean:g}, not between {low:g} and {high:g}"
        )
    return mean
