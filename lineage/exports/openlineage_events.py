"""OpenLineage: every run and every step as a run of a job that reads and writes datasets.

Built with the classes of the official client. Events do not depend on when or where they are exported: ids are derived
from the names of runs and steps, and times are the recorded ones.
"""

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState, set_producer
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    data_quality_metrics_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    source_code_location_job,
    tags_run,
)
from openlineage.client.serde import Serde
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

from lineage.exports.scope import Scope, collect_scope, end_time, find_tables, format_time, stable_id
from lineage.layout import Layout
from lineage.records import Record
from schemas.errors import PlanError

PRODUCER = "urn:posttrain"
NAMESPACE = "posttrain"
OUTSIDE = {"hub": "hf", "path": "file", "mlflow": "mlflow"}
"""Namespace of an outside source, by the scheme of its reference."""


def make_lineage_events(layout: Layout, word: str, *, made_by: str | None = None) -> list[RunEvent]:
    """Return the events of a target and its ancestors, or only those of one run; oldest first.

    Raise UnknownTarget.
    """
    set_producer(PRODUCER)
    scope = collect_scope(layout, word)
    by_key = {record["key"]: record for record in scope.records}
    if made_by:
        scope = scope.made_by(made_by)
    events = [*_make_run_events(scope), *_make_step_events(scope, by_key), *_make_unfinished_events(scope, by_key)]
    order = list(RunState)
    return sorted(
        events,
        key=lambda e: (datetime.fromisoformat(e.eventTime), order.index(e.eventType or RunState.OTHER), e.job.name),
    )


def encode_json_lines(events: list[RunEvent]) -> str:
    """Return one event per line."""
    return "".join(Serde.to_json(event) + "\n" for event in events)


def send_events(events: list[RunEvent], url: str) -> int:
    """Send events to an OpenLineage server; return how many. Raise PlanError if it does not accept them.

    OPENLINEAGE_API_KEY and OPENLINEAGE_ENDPOINT have the same meaning as in the official client.
    """
    endpoint = os.environ.get("OPENLINEAGE_ENDPOINT", "api/v1/lineage")
    config = {"url": url, "endpoint": endpoint, "retry": {"total": 2, "backoff_factor": 0.1}}
    transport = HttpTransport(HttpConfig.from_dict(config))
    if key := os.environ.get("OPENLINEAGE_API_KEY"):
        transport.config.auth = ApiKeyTokenProvider({"api_key": key})
    try:
        for event in events:
            transport.emit(event)
    except OSError as error:  # raised by requests; its text may hold the address with a password
        answer = getattr(error, "response", None)
        what = f"answered {answer.status_code}" if answer is not None else f"cannot be reached ({type(error).__name__})"
        raise PlanError(f"the OpenLineage server of OPENLINEAGE_URL {what}") from None
    finally:
        transport.close()
    return len(events)


def _make_run_events(scope: Scope) -> Iterator[RunEvent]:
    for run, events in scope.events.items():
        run_events = [event for event in events if event["type"] == "run"]
        recipes = [r["recipe"] for r in scope.records if r["run"] == run] or [e.get("recipe", "") for e in run_events]
        for event in [e for e in run_events if e["state"] == "started"][:1] + [
            e for e in run_events if e["state"] == "ended"
        ][-1:]:
            state = RunState.START if event["state"] == "started" else _end_state(event["exit_code"])
            yield RunEvent(
                eventTime=format_time(event["time"]),
                eventType=state,
                producer=PRODUCER,
                run=Run(stable_id("run", run)),
                job=Job(NAMESPACE, recipes[0], {"jobType": _make_job_type("DAG")}),
            )


def _end_state(exit_code: int) -> RunState:
    return {0: RunState.COMPLETE, 130: RunState.ABORT}.get(exit_code, RunState.FAIL)


def _make_step_events(scope: Scope, by_key: dict[str, Record]) -> Iterator[RunEvent]:
    for record in scope.records:
        run = Run(stable_id("step", record["run"], record["key"]), _make_run_facets(record))
        job = Job(NAMESPACE, f"{record['recipe']}.{record['step']}", _make_job_facets(record))
        inputs = [_make_input(input_record, by_key) for input_record in record["inputs"]]
        yield RunEvent(
            eventTime=record["started"], eventType=RunState.START, producer=PRODUCER, run=run, job=job, inputs=inputs
        )
        yield RunEvent(
            eventTime=end_time(record).isoformat(),
            eventType=RunState.COMPLETE,
            producer=PRODUCER,
            run=run,
            job=job,
            inputs=inputs,
            outputs=[_make_output(record, name) for name in record["outputs"]],
        )


def _make_unfinished_events(scope: Scope, by_key: dict[str, Record]) -> Iterator[RunEvent]:
    """Yield a start and an end of each step without an artifact, with its planned inputs."""
    events = scope.events.get(scope.target.word, [])
    recipe = next((e["recipe"] for e in events if e["type"] == "run" and "recipe" in e), "")
    for event in scope.unfinished():
        began = [e["time"] for e in events if e.get("step") == event["step"] and e.get("state") == "running"]
        parent = {"parent": _make_parent(scope.target.word, recipe)}
        reason = {"errorMessage": error_message_run.ErrorMessageRunFacet(event.get("reason", ""), "python")}
        end = RunState.ABORT if event["state"] == "cancelled" else RunState.FAIL
        for seconds, state, facets in (
            ([*began, event["time"]][0], RunState.START, parent),
            (event["time"], end, parent | reason),
        ):
            yield RunEvent(
                eventTime=format_time(seconds),
                eventType=state,
                producer=PRODUCER,
                run=Run(stable_id("unfinished", scope.target.word, event["step"]), facets),
                job=Job(NAMESPACE, f"{recipe}.{event['step']}", {"jobType": _make_job_type("TASK")}),
                inputs=_make_planned_inputs(scope, event["step"], by_key),
            )


def _make_planned_inputs(scope: Scope, step: str, by_key: dict[str, Record]) -> list[InputDataset]:
    """Return the planned inputs of a step whose artifacts exist."""
    keys = {name: planned["key"] for name, planned in scope.planned.items()}
    inputs = []
    for planned_input in scope.planned.get(step, {}).get("inputs", []):
        made = next((by_key[keys[name]] for name in planned_input["steps"] if keys.get(name) in by_key), None)
        if planned_input["source"]:
            inputs.append(_make_input(planned_input, by_key))
        elif made is not None:
            digest = made["outputs"][planned_input["output"]]["digest"]
            inputs.append(
                _make_input(planned_input | {"step": made["step"], "key": made["key"], "digest": digest}, by_key)
            )
    return inputs


def _make_run_facets(record: Record) -> dict[str, RunFacet]:
    facts = {"key": record["key"], "kind": record["kind"], "seed": record["seed"], "dirty": record["dirty"]}
    tags = [tags_run.TagsRunFacetFields(name, str(value), "posttrain") for name, value in facts.items()]
    engine = processing_engine_run.ProcessingEngineRunFacet(record.get("commit") or "unknown", "posttrain")
    return {
        "parent": _make_parent(record["run"], record["recipe"]),
        "tags": tags_run.TagsRunFacet(tags),
        "processing_engine": engine,
    }


def _make_parent(run: str, recipe: str) -> RunFacet:
    return parent_run.ParentRunFacet(parent_run.Run(stable_id("run", run)), parent_run.Job(NAMESPACE, recipe))


def _make_job_facets(record: Record) -> dict[str, JobFacet]:
    path = f"tasks/{record['kind']}.py"
    facets: dict[str, JobFacet] = {"jobType": _make_job_type("TASK")}
    if record.get("commit"):
        facets["sourceCodeLocation"] = source_code_location_job.SourceCodeLocationJobFacet(
            "git", f"{PRODUCER}:{path}", path=path, version=record["commit"]
        )
    return facets


def _make_job_type(what: str) -> JobFacet:
    return job_type_job.JobTypeJobFacet("BATCH", "POSTTRAIN", what)


def _make_input(record: Mapping[str, Any], by_key: dict[str, Record]) -> InputDataset:
    version: dict[str, DatasetFacet] = {"version": dataset_version_dataset.DatasetVersionDatasetFacet(record["digest"])}
    if record.get("source"):
        scheme, _, name = record["source"].partition(":")
        return InputDataset(OUTSIDE[scheme], name.partition("@")[0], facets=version)
    made = by_key.get(record["key"])
    recipe = made["recipe"] if made else ""
    return InputDataset(NAMESPACE, f"{recipe}.{record['step']}.{record['output']}", facets=version)


def _make_output(record: Record, name: str) -> OutputDataset:
    output = record["outputs"][name]
    facets: dict[str, DatasetFacet] = {"version": dataset_version_dataset.DatasetVersionDatasetFacet(output["digest"])}
    rows = None
    files = [path for path in find_tables(record, name) if path.is_file()]
    if len(files) == 1:
        table = pq.ParquetFile(files[0])
        rows = table.metadata.num_rows
        facets["schema"] = schema_dataset.SchemaDatasetFacet([_make_field(field) for field in table.schema_arrow])
        facets["dataQualityMetrics"] = _measure_quality(table)
    size = sum(file["size"] for file in output["files"])
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rows, size, len(output["files"]))
    dataset = f"{record['recipe']}.{record['step']}.{quote(name)}"
    return OutputDataset(NAMESPACE, dataset, facets=facets, outputFacets={"outputStatistics": statistics})


def _make_field(field: pa.Field) -> schema_dataset.SchemaDatasetFacetFields:
    inner = field.type
    while pa.types.is_list(inner) or pa.types.is_large_list(inner):
        inner = inner.value_type
    parts = [_make_field(inner.field(at_)) for at_ in range(inner.num_fields)] if pa.types.is_struct(inner) else []
    return schema_dataset.SchemaDatasetFacetFields(field.name, str(field.type), fields=parts)


def _measure_quality(table: pq.ParquetFile) -> data_quality_metrics_dataset.DataQualityMetricsDatasetFacet:
    """Return rows, and the empty values of each column, by the table's own statistics."""
    meta, nulls, column_names = (
        table.metadata,
        dict.fromkeys(table.schema_arrow.names, 0),
        set(table.schema_arrow.names),
    )
    for group in range(meta.num_row_groups):
        for column in range(meta.num_columns):
            chunk = meta.row_group(group).column(column)
            if chunk.path_in_schema in nulls and chunk.statistics is not None and chunk.statistics.has_null_count:
                nulls[chunk.path_in_schema] += chunk.statistics.null_count
            else:
                column_names.discard(chunk.path_in_schema.partition(".")[0])
    columns = {name: data_quality_metrics_dataset.ColumnMetrics(nullCount=nulls[name]) for name in sorted(column_names)}
    return data_quality_metrics_dataset.DataQualityMetricsDatasetFacet(columns, rowCount=meta.num_rows)
