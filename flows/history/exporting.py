"""Lineage in standard formats: as text, or sent to a server."""

import os

from lineage.layout import Layout
from schemas.errors import PlanError


def export_text(what: str, target: str, layout: Layout) -> str:
    """Return OpenLineage (one event per line), PROV-JSON, PROV-N or CycloneDX. Raise UnknownTarget or PlanError."""
    if what == "openlineage":
        from lineage.exports.openlineage_events import encode_json_lines, make_lineage_events  # imports pyarrow

        return encode_json_lines(make_lineage_events(layout, target))
    if what == "bom":
        from lineage.exports.model_bom import make_model_bom  # imports pyarrow

        return make_model_bom(layout, target)
    from lineage.exports.prov_document import make_prov_document, serialize_document  # a run does not need it

    return serialize_document(make_prov_document(layout, target), "provn" if what == "provn" else "json")


def send_events(what: str, target: str, layout: Layout) -> str:
    """Send the events of a target to the server at OPENLINEAGE_URL; return a message. Raise PlanError."""
    url = os.environ.get("OPENLINEAGE_URL")
    if what != "openlineage" or not url:
        raise PlanError("--send needs the format openlineage and OPENLINEAGE_URL, the address of the server; set it")
    from lineage.exports.openlineage_events import make_lineage_events, send_events  # imports pyarrow

    return f"{send_events(make_lineage_events(layout, target), url)} events sent\n"


def send_run(layout: Layout, run: str) -> None:
    """Send a run's events to the server at OPENLINEAGE_URL, if it is set. Raise PlanError if it does not answer."""
    if url := os.environ.get("OPENLINEAGE_URL"):
        from lineage.exports.openlineage_events import make_lineage_events, send_events  # imports pyarrow

        send_events(make_lineage_events(layout, run, made_by=run), url)
