"""Lineage in the formats of others: as text, or given to a server."""

import os

from lineage.layout import Layout
from schemas.errors import PlanError


def export_text(what: str, target: str, layout: Layout) -> str:
    """OpenLineage events (one per line), PROV-JSON, PROV-N or CycloneDX JSON. Raises UnknownTarget or PlanError."""
    if what == "openlineage":
        from lineage.exports.openlineage_events import as_json_lines, lineage_events

        return as_json_lines(lineage_events(layout, target))
    if what == "bom":
        from lineage.exports.model_bom import model_bom

        return model_bom(layout, target)
    from lineage.exports.prov_document import as_text, prov_document

    return as_text(prov_document(layout, target), "provn" if what == "provn" else "json")


def send_events(what: str, target: str, layout: Layout) -> str:
    """Give the events of a target to the server of OPENLINEAGE_URL; returns a line that says so. Raises PlanError."""
    url = os.environ.get("OPENLINEAGE_URL")
    if what != "openlineage" or not url:
        raise PlanError("--send gives openlineage events to the server that OPENLINEAGE_URL names; set it")
    from lineage.exports.openlineage_events import lineage_events, send

    return f"{send(lineage_events(layout, target), url)} events sent\n"


def send_run(layout: Layout, run: str) -> None:
    """Tell the server of OPENLINEAGE_URL, if there is one, what a run did. Raises PlanError when it does not listen."""
    if url := os.environ.get("OPENLINEAGE_URL"):
        from lineage.exports.openlineage_events import lineage_events, send

        send(lineage_events(layout, run, made_by=run), url)
