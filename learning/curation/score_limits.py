"""Rows dropped by scores: block by block, with limits as numbers or as quantiles of the scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from learning.api.spending import SpendingAccount
from learning.curation.ledger import Curation
from learning.curation.report import YieldTable
from learning.curation.row_blocks import compute_in_blocks
from learning.data.rows import Row
from learning.data.shards import ShardWriter
from learning.lookup import Bound, bind
from learning.models.policy import set_determinism
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.use import RowScoreUse

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Quantiles of the scores that the report shows."""
SCORES = pa.schema([("id", pa.string()), ("score", pa.string()), ("value", pa.float64())])
"""Columns of `scores.parquet`."""


@dataclass(frozen=True)
class Limits:
    """Lowest and highest score that is kept, infinite without one."""

    low: float
    high: float


@dataclass(frozen=True)
class Scoring:
    """How models score rows: the account of remote requests, checkpoints, seed, rows per block."""

    account: SpendingAccount
    checkpoints: Path
    seed: int
    size: int
    on_progress: Callable[[int, int], None]


def drop_by_scores(
    rows: Curation,
    scores: Sequence[RowScoreUse],
    table: YieldTable,
    report: Path,
    *,
    inputs: Mapping[str, Path],
    account: SpendingAccount,
    checkpoints: Path,
    seed: int,
    size: int,
    num_threads: int,
    on_progress: Callable[[int, int], None],
) -> list[JsonObject]:
    """Drop the rows outside of the limits of each score, one score after the other; return their distributions.

    The next score is computed only for the rows that are left. All scores are written to `scores.parquet` in `report`.
    Raise StepError if no row has a score, or if one has none and its slot says `unscored: stop`.
    """
    set_determinism(seed, num_threads)
    scoring = Scoring(account, checkpoints, seed, size, on_progress)
    described: list[JsonObject] = []
    names: list[str] = []
    with ShardWriter(report, SCORES, "scores", whole=True) as writer:
        for i, use in enumerate(scores):
            bound = bind(use, f"scores.{i}", inputs)
            names.append(name_score(bound, names))
            values_N = compute_scores(rows, bound, scoring)
            rows.connection.register("scored", pa.table({"row": np.flatnonzero(rows.mask()), "value": values_N}))
            _write_scores(rows, names[-1], writer)
            described.append(_apply_limits(rows, use, names[-1], values_N))
            rows.connection.unregister("scored")
            table.add(f"score {names[-1]}", described[-1].pop("dropped"))
    return described


def name_score(bound: Bound, earlier: Sequence[str]) -> str:
    """Return the name of a score with the functions that its options name: `reward(judges.model)`; none is repeated."""
    inner = [value.name for value in bound.options.values() if isinstance(value, Bound)]
    name = f"{bound.name}({', '.join(inner)})" if inner else bound.name
    count = sum(other.partition("#")[0] == name for other in earlier)
    return f"{name}#{count + 1}" if count else name


def compute_scores(rows: Curation, bound: Bound, scoring: Scoring) -> np.ndarray:
    """Return the scores (N,) of the rows that are left, NaN where there is none."""
    supplies = {"account": scoring.account, "seed": scoring.seed}

    def compute(block: list[Row]) -> np.ndarray:
        values = bound.ask(0, supplies, block)
        if len(values) != len(block):
            raise StepError(f"score {bound.name}: {len(values)} scores for {len(block)} rows; return one per row")
        return np.array([np.nan if value is None else value for value in values], np.float64)[:, None]

    left = rows.kept()
    folder = scoring.checkpoints / bound.slot
    return np.asarray(
        compute_in_blocks(rows, compute, folder, scoring.size, lambda done: scoring.on_progress(done, left))[:, 0]
    )


def _apply_limits(rows: Curation, use: RowScoreUse, name: str, values_N: np.ndarray) -> JsonObject:
    """Drop the rows outside of the limits of one score; return its distribution, and the rows dropped by reason."""
    scored_S = np.sort(values_N[~np.isnan(values_N)])
    missing = len(values_N) - len(scored_S)
    if missing and use.unscored == "stop":
        raise StepError(f"curate: {name}: {missing} of {len(values_N)} rows have no score (`unscored: stop`)")
    if missing and not len(scored_S):
        raise StepError(f"curate: {name}: none of {missing} rows has a score, so nothing can be chosen by it")
    limits = find_limits(use, scored_S)
    reasons = {"too low": f"< {limits.low:.6g}", "too high": f"> {limits.high:.6g}", "no score": ""}
    conditions = [
        ("too low", "value < $1", limits.low),
        ("too high", "value > $1", limits.high),
        ("no score", "isnan(value) and $1 = 'drop'", use.unscored),
    ]
    dropped: dict[str, int] = {}
    for reason, condition, value in conditions:
        is_number = f"not isnan(value) and {condition}" if reason != "no score" else condition
        shown = "'no score'" if reason == "no score" else f"format('{{:.6g}} {reasons[reason]}', value)"
        before = rows.kept()
        rows.run(
            f"insert into dropped select row, 'score', $2 || ': ' || {shown} from scored where {is_number}", value, name
        )
        dropped[reason] = before - rows.kept()
    quantiles = np.quantile(scored_S, QUANTILES).tolist() if len(scored_S) else []
    return {
        "name": name,
        "rows": len(values_N),
        "unscored": missing,
        "low": limits.low if np.isfinite(limits.low) else None,
        "high": limits.high if np.isfinite(limits.high) else None,
        "quantiles": {f"{100 * q:g} %": value for q, value in zip(QUANTILES, quantiles, strict=False)},
        "dropped": dropped,
    }


def find_limits(use: RowScoreUse, values_N: np.ndarray) -> Limits:
    """Return the limits of a score; of a number and a quantile the stricter one.

    Quantiles are interpolated linearly, as numpy does.
    """
    low = [-np.inf if use.min is None else use.min]
    high = [np.inf if use.max is None else use.max]
    if len(values_N) and use.min_quantile is not None:
        low.append(float(np.quantile(values_N, use.min_quantile)))
    if len(values_N) and use.max_quantile is not None:
        high.append(float(np.quantile(values_N, use.max_quantile)))
    return Limits(max(low), min(high))


def _write_scores(rows: Curation, name: str, writer: ShardWriter) -> None:
    """Write the scores with the ids of their rows, in order."""
    query = """select id, $1 as score, case when isnan(value) then null else value end as value
        from scored join texts using (row) order by row"""
    for batch in rows.connection.sql(query, params=[name]).to_arrow_reader(65_536):
        writer.write(batch)
