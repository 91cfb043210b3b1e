"""kind: curate — keep the rows that are worth training on, and report why each other row was dropped."""

import random
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from learning.curation.decontamination import Evaluation, drop_contaminated
from learning.curation.duplicates import drop_exact_duplicates, drop_near_duplicates
from learning.curation.ledger import Curation, drop_by_length, drop_malformed, open_curation
from learning.curation.report import summarise, write_report
from learning.data.expectations import measure_expectations, require_expectations
from learning.data.messages import unpack_rows
from learning.data.rows import open_row_writer, read_rows
from learning.lookup import Bound, bind
from schemas.errors import StepError
from schemas.stages.curate import Curate, Decontaminate
from tasks.context import Context, Result

MEMORY = "2GiB"
"""Memory of DuckDB for ids, keys and reasons; beyond it, DuckDB spills to disk."""


def run(stage: Curate, context: Context) -> Result:
    """Write the kept rows to output `data`, in their order, and the dropped rows with reasons to output `report`.

    Metrics: `rows`, `kept`, `dropped` and `dropped.<reason>`. Raises StepError when no row is left, when the rows
    have no known type, and when decontamination drops more than `max_dropped`.
    """
    with tempfile.TemporaryDirectory(dir=context.folder, prefix="spill-") as spill:
        settings = {"num_threads": context.num_threads, "memory_limit": MEMORY, "spill": Path(spill)}
        with open_curation(context.input("data"), **settings) as rows:
            evaluations = find_evaluations(stage.decontaminate, context) if stage.decontaminate else []
            drop_malformed(rows)
            drop_by_length(rows, stage.min_length, stage.max_length)
            if stage.exact_dedup:
                drop_exact_duplicates(rows)
            drop_by_quality(rows, stage, context)
            if stage.fuzzy_dedup:
                drop_near_duplicates(rows, **stage.fuzzy_dedup.model_dump(), seed=context.seed)
            if stage.decontaminate:
                decontaminate(rows, stage.decontaminate, evaluations)
            drop_beyond_limit(rows, stage.limit, context.seed)
            result = write_outputs(rows, evaluations, context)
            made, artifact_type = context.output("data"), rows.artifact_type
            expected = measure_expectations(stage.expect, made, artifact_type, Path(spill), context.num_threads)
            require_expectations("curate", expected)
            return replace(result, details={**result.details, "expectations": expected})


def find_evaluations(settings: Decontaminate, context: Context) -> list[Evaluation]:
    """Return the problems of each evaluation, generated from its slots or read from the stage that made them."""
    evaluations = []
    for i, use in enumerate(settings.against):
        port = f"decontaminate.against.{i}"
        plain = [f"{name}={value}" for name, value in sorted(use.options.items()) if not isinstance(value, dict | list)]
        evaluations.append(
            Evaluation(f"against.{i}({', '.join([use.use, *plain])})", bind(use, port, context.inputs)())
        )
    for i in range(len(settings.against_prompts)):
        problems = read_rows(context.input(f"decontaminate.against_prompts.{i}"), "prompts")
        # Named by its families: the name of the stage is not in the key, so it must not be in the artifact.
        families = ", ".join(sorted({row["family"] or "no family" for row in problems})[:3])
        evaluations.append(Evaluation(f"against_prompts.{i}({families})", problems))
    return evaluations


def drop_by_quality(rows: Curation, stage: Curate, context: Context) -> None:
    """Drop the rows that a filter rejects; the report names the first such filter."""
    filters = []
    for i, use in enumerate(stage.filters):
        bound = bind(use, f"filters.{i}", context.inputs)
        filters.append((describe_filter(bound, use.options), bound.at(0)))
    if not filters:
        return
    for block in rows.blocks():
        dropped = []
        numbers = block.column("row").to_pylist()
        for number, row in zip(numbers, unpack_rows(block.drop_columns("row")), strict=True):
            rejecting = next((name for name, keep in filters if not keep(row)), None)
            if rejecting is not None:
                dropped.append((number, "quality", rejecting))
        rows.drop(dropped)


def describe_filter(bound: Bound, options: Mapping[str, object]) -> str:
    """Return the name and options of a filter for the report, without names of stages, which are not in the key."""
    plain = {key: value for key, value in options.items() if not isinstance(bound.options.get(key), Path)}
    return f"{bound.name} {plain}"


def decontaminate(rows: Curation, settings: Decontaminate, evaluations: list[Evaluation]) -> None:
    """Drop contaminated rows; raise StepError if they are more than the share `max_dropped`."""
    before = rows.kept()
    drop_contaminated(rows, evaluations, settings.ngram, settings.max_overlap)
    num_dropped = before - rows.kept()
    if num_dropped > settings.max_dropped * before:
        first = rows.run(
            "select id, detail from dropped join texts using (row) where reason = 'contaminated' order by row limit 1"
        )
        raise StepError(
            f"decontaminate: {num_dropped} of {before} rows contain evaluation problems, more than max_dropped = "
            f"{settings.max_dropped} (first: {first[0][0]}, {first[0][1]}); make the training rows from "
            "other problems, or raise max_dropped"
        )


def drop_beyond_limit(rows: Curation, limit: int | None, seed: int) -> None:
    """Keep `limit` rows drawn at random with the seed, in their order."""
    left = np.flatnonzero(rows.mask())
    if limit is not None and len(left) > limit:
        is_dropped = np.ones(len(left), bool)
        is_dropped[random.Random(seed).sample(range(len(left)), limit)] = False
        rows.drop_all(left[is_dropped], "limit", f"{limit} of {len(left)} drawn")


def write_outputs(rows: Curation, evaluations: list[Evaluation], context: Context) -> Result:
    """Write data and report; raise StepError if no row is left."""
    counts = summarise(rows, evaluations)
    if counts["rows"] and not counts["kept"]:
        reasons = ", ".join(f"{reason} {number}" for reason, number in counts["dropped"].items() if number)
        raise StepError(f"curate: none of {counts['rows']} rows is left ({reasons})")
    with open_row_writer(context.output("data"), rows.artifact_type) as writer:
        for block in rows.blocks():
            writer.write(block.drop_columns("row"))
    write_report(rows, counts, context.output("report"))
    by_reason = {f"dropped.{reason}": number for reason, number in counts["dropped"].items()}
    dropped = counts["rows"] - counts["kept"]
    return Result({"rows": counts["rows"], "kept": counts["kept"], "dropped": dropped, **by_reason}, counts)
