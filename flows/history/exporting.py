"""Lineage in the formats of others: as text, or given to a server."""

import os

from lineage.layout import Layout
from schemas.errors import PlanError


def export_text(what: str, target: str, layout: Layout) -> str:
    """OpenLineage events (one per line), PROV-JSON, PROV-N or CycloneDX JSON. Raises UnknownTarget or PlanError."""
    if what == "openlineage":
        from lineage.exports.openlineage_events import encode_json_lines, make_lineage_events

        return encode_json_lines(make_lineage_events(layout, target))
    if what == "bom":
        from lineage.exports.model_bom import make_model_bom

        return make_model_bom(layout, target)
    from lineage.exports.prov_document import make_prov_document, serialize_document

    return serialize_document(make_prov_document(layout, target), "provn" if what == "provn" else "json")


def send_events(what: str, target: str, layout: Layout) -> str:
    """Give the events of a target to the server of OPENLINEAGE_URL; returns a line that says so. Raises PlanError."""
    url = os.environ.get("OPENLINEAGE_URL")
    if what != "openlineage" or not url:
        raise PlanError("--send gives openlineage events to the server that OPENLINEAGE_URL names; set it")
    from lineage.exports.openlineage_events import make_lineage_events, send_events

    return f"{send_events(make_lineage_events(layout, target), url)} events sent\n"


def send_run(layout: Layout, run: str) -> None:
    """Tell the server of OPENLINEAGE_URL, if there is one, what a run did. Raises PlanError when it does not listen."""
    if url := os.environ.get("OPENLINEAGE_URL"):
        from lineage.exports.openlineage_events import make_lineage_events, send_events

        send_events(make_lineage_events(layout, run, made_by=run), url)
