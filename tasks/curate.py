"""kind: curate — keep the rows that are worth training on, and report why each other row was dropped."""

import random
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from learning.curation.decontamination import Evaluation, drop_contaminated
from learning.curation.duplicates import drop_exact_duplicates, drop_near_duplicates
from learning.curation.ledger import Curation, drop_by_length, drop_malformed, open_curation
from learning.curation.report import CurationCounts, YieldTable, describe_yield, format_yield, summarise, write_report
from learning.data.expectations import measure_expectations, require_expectations
from learning.data.messages import unpack_rows
from learning.data.rows import open_row_writer, read_rows
from learning.lookup import Bound, bind, load_optional
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.stages.curate import Curate, Decontaminate
from schemas.use import EmbeddingUse
from tasks.context import Context, Result
from tasks.remote import SpendingReporter, open_account

if TYPE_CHECKING:
    from learning.curation.masking import Masked

MEMORY = "2GiB"
"""Memory of DuckDB for ids, keys and reasons; beyond it, DuckDB spills to disk."""


def run(stage: Curate, context: Context) -> Result:
    """Write the kept rows to output `data`, in their order, and the dropped rows with reasons to output `report`.

    Metrics: `rows`, `kept`, `dropped` and `dropped.<reason>`; `masked` and `masked.<kind>` if private data is masked.
    Raises StepError when no row is left, when the rows have no known type, and when decontamination drops more than
    `max_dropped`.
    """
    with tempfile.TemporaryDirectory(dir=context.folder, prefix="spill-") as name:
        spill = Path(name)
        data, masked = mask_private_data(stage, context, spill)
        settings = {"num_threads": context.num_threads, "memory_limit": MEMORY, "spill": spill}
        with open_curation(data, **settings) as rows:
            evaluations = find_evaluations(stage.decontaminate, context) if stage.decontaminate else []
            table = YieldTable(rows)
            if masked is not None:
                table.add_changes("mask", masked.rows, masked.spans)
            drop_malformed(rows)
            table.add("schema", count_details(rows, "malformed"))
            drop_by_length(rows, stage.min_length, stage.max_length)
            table.add("length")
            if stage.exact_dedup:
                drop_exact_duplicates(rows)
                table.add("exact_dedup")
            drop_by_quality(rows, stage, context, table)
            if stage.fuzzy_dedup:
                drop_near_duplicates(rows, **stage.fuzzy_dedup.model_dump(), seed=context.seed)
                table.add("fuzzy_dedup")
            drop_by_meaning(rows, stage, context, table)
            if stage.decontaminate:
                decontaminate(rows, stage.decontaminate, evaluations)
                table.add("decontaminate")
            scores = drop_by_models(rows, stage, context, table)
            topics = choose_diverse(rows, stage, context, table)
            drop_beyond_limit(rows, stage.limit, context.seed)
            if stage.limit is not None:
                table.add("limit")
            result = write_outputs(rows, summarise(rows, evaluations, table, scores, topics), context)
            made, artifact_type = context.output("data"), rows.artifact_type
            expected = measure_expectations(stage.expect, made, artifact_type, spill, context.num_threads)
            require_expectations("curate", expected)
            return replace(
                result,
                metrics={**result.metrics, **(masked.metrics if masked else {})},
                details={**result.details, "expectations": expected},
            )


def mask_private_data(stage: Curate, context: Context, spill: Path) -> "tuple[Path, Masked | None]":
    """Return the folder of the rows, with private data replaced if the stage says so, and what was replaced."""
    if stage.mask is None or (mask_rows := load_optional(stage, "mask_rows")) is None:
        return context.input("data"), None
    (spill / "masked").mkdir()
    return spill / "masked", mask_rows(context.input("data"), stage.mask, spill / "masked")


def drop_by_meaning(rows: Curation, stage: Curate, context: Context, table: YieldTable) -> None:
    """Drop rows whose embedding is close to that of an earlier row."""
    settings, drop_similar = stage.semantic_dedup, load_optional(stage, "drop_similar")
    if settings is not None and drop_similar is not None:
        vectors_ND = embed(rows, stage, settings.embedding, "semantic_dedup.embedding", context)
        drop_similar(rows, settings, vectors_ND, table, context.seed)


def drop_by_models(rows: Curation, stage: Curate, context: Context, table: YieldTable) -> list[JsonObject]:
    """Drop rows by the scores of models; return the distribution of each score."""
    drop_by_scores = load_optional(stage, "drop_by_scores")
    if drop_by_scores is None:
        return []
    account = open_account(context)
    spending = SpendingReporter(context, account)

    def report(done: int, total: int) -> None:
        spending.report()
        context.progress(done, total)

    return drop_by_scores(
        rows,
        stage.scores,
        table,
        context.output("report"),
        inputs=context.inputs,
        account=account,
        checkpoints=context.checkpoints,
        seed=context.seed,
        size=stage.rows_per_block,
        num_threads=context.num_threads,
        on_progress=report,
    )


def choose_diverse(rows: Curation, stage: Curate, context: Context, table: YieldTable) -> list[JsonObject]:
    """Drop all rows but those that cover the others; return the topics, if there are any."""
    settings, drop_beyond_diversity = stage.diversity, load_optional(stage, "drop_beyond_diversity")
    if settings is None or drop_beyond_diversity is None or not rows.kept():
        return []
    vectors_ND = embed(rows, stage, settings.embedding, "diversity.embedding", context)
    return drop_beyond_diversity(rows, settings, vectors_ND, table, context.seed)


def embed(rows: Curation, stage: Curate, use: EmbeddingUse, port: str, context: Context) -> np.ndarray:
    """Return the embeddings (N, D) of the rows that are left."""
    embed_rows = load_optional(stage, "embed_rows")
    assert embed_rows is not None
    return embed_rows(
        rows, bind(use, port, context.inputs), context.checkpoints, stage.rows_per_block, context.progress
    )


def find_evaluations(settings: Decontaminate, context: Context) -> list[Evaluation]:
    """Return the problems of each evaluation, generated from its slots or read from the stage that made them."""
    evaluations = []
    for i, use in enumerate(settings.against):
        port = f"decontaminate.against.{i}"
        plain = [f"{name}={value}" for name, value in sorted(use.options.items()) if not isinstance(value, dict | list)]
        made = bind(use, port, context.inputs)()
        problems = made if isinstance(made, list) else made.rows  # tasks of a library have theirs as rows
        evaluations.append(Evaluation(f"against.{i}({', '.join([use.use, *plain])})", problems))
    for i in range(len(settings.against_prompts)):
        problems = read_rows(context.input(f"decontaminate.against_prompts.{i}"), "prompts")
        # Named by its families: the name of the stage is not in the key, so it must not be in the artifact.
        families = ", ".join(sorted({row["family"] or "no family" for row in problems})[:3])
        evaluations.append(Evaluation(f"against_prompts.{i}({families})", problems))
    return evaluations


def drop_by_quality(rows: Curation, stage: Curate, context: Context, table: YieldTable) -> None:
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
    counts = count_details(rows, "quality")
    table.add_parts({name: counts.get(name, 0) for name in dict.fromkeys(name for name, _ in filters)})


def count_details(rows: Curation, reason: str) -> dict[str, int]:
    """Return how many rows were dropped for a reason, by the details of it."""
    return dict(
        rows.run("select detail, count(*) from dropped where reason = $1 group by detail order by detail", reason)
    )


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


def write_outputs(rows: Curation, counts: CurationCounts, context: Context) -> Result:
    """Write data and report; raise StepError if no row is left."""
    if counts["rows"] and not counts["kept"]:
        reasons = ", ".join(f"{reason} {number}" for reason, number in counts["dropped"].items() if number)
        raise StepError(f"curate: none of {counts['rows']} rows is left ({reasons})")
    with open_row_writer(context.output("data"), rows.artifact_type) as writer:
        for block in rows.blocks():
            writer.write(block.drop_columns("row"))
    write_report(rows, counts, context.output("report"))
    print("\n".join(format_yield(counts["steps"])))
    by_reason = {f"dropped.{reason}": number for reason, number in counts["dropped"].items()}
    dropped = counts["rows"] - counts["kept"]
    notices = [f"rows left by each step: {describe_yield(counts['steps'])}"] if dropped else []
    return Result(
        {"rows": counts["rows"], "kept": counts["kept"], "dropped": dropped, **by_reason}, {**counts}, notices
    )
