"""Commands about lineage: ancestors and descendants, verification, exports, SQL."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, console
from schemas.errors import PlanError


class ExportFormat(enum.StrEnum):
    """Format of `export`: OpenLineage, PROV-JSON, PROV-N, CycloneDX; folders of transformers, GGUF, Minari."""

    openlineage = "openlineage"
    prov = "prov"
    provn = "provn"
    bom = "bom"
    hf = "hf"
    gguf = "gguf"
    minari = "minari"


FOLDERS = (ExportFormat.hf, ExportFormat.gguf, ExportFormat.minari)
"""Formats that are written into a new folder."""


class GgufPrecision(enum.StrEnum):
    """Precision of the matrices in a GGUF file."""

    f32 = "f32"
    f16 = "f16"
    q8_0 = "q8_0"


def lineage(
    target: Annotated[
        str | None,
        typer.Argument(help="A step, key, digest, run, artifact folder, row id or source; default: all."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check files, seals, signatures and the audit log.")] = False,
    signed: Annotated[bool, typer.Option("--signed", help="With --verify: refuse unsigned artifacts.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="With --verify: rebuild an index or decisions that differ.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the ancestors of a target, up to rows of data, and its descendants, down to every model."""
    from flows.history.audit import show_lineage, show_verification
    from lineage.layout import Layout

    if verify or signed or rebuild:
        raise typer.Exit(show_verification(target, Layout.find(), console, as_json, signed, rebuild))
    raise typer.Exit(show_lineage(target, Layout.find(), console, as_json))


def export(
    what: Annotated[ExportFormat, typer.Argument(help="What to export.")],
    target: Annotated[
        str,
        typer.Argument(
            help="As for `lineage`; for `bom` one model; for `hf` and `gguf` a model as for `serve`; for `minari` a "
            "step of kind `collect`."
        ),
    ],
    folder: Annotated[Path | None, typer.Argument(help="With hf, gguf and minari: a new folder to write.")] = None,
    out: Annotated[Path | None, typer.Option(help="A file to write; default: the terminal.")] = None,
    send: Annotated[
        bool, typer.Option("--send", help="With openlineage: send the events to the server OPENLINEAGE_URL.")
    ] = False,
    kind: Annotated[
        GgufPrecision, typer.Option("--type", help="With gguf: precision of the matrices.")
    ] = GgufPrecision.f16,
    max_shard_size: Annotated[str, typer.Option(help="With hf: largest file of weights.")] = "5GB",
) -> None:
    """Export a model for transformers or llama.cpp, transitions for Minari, or lineage in a standard format."""
    if (folder is not None) != (what in FOLDERS):
        raise PlanError(
            "give a folder with `hf`, `gguf` and `minari`, and only with them: posttrain export gguf TARGET FOLDER"
        )
    if folder is not None:
        if out is not None or send:
            raise PlanError("--out and --send are for lineage; hf, gguf and minari write the folder")
        if what is ExportFormat.minari:
            _export_transitions(target, folder)
            return
        _export_model(what, target, folder, kind, max_shard_size)
        return
    from flows.history.exporting import export_text, send_events
    from lineage.layout import Layout

    text = send_events(what.value, target, Layout.find()) if send else export_text(what.value, target, Layout.find())
    if out is None:
        print(text, end="")
    else:
        out.write_text(text)


def _export_transitions(target: str, folder: Path) -> None:
    from flows.publishing.transitions_export import export_minari
    from lineage.layout import Layout

    steps, episodes = export_minari(Layout.find(), target, folder)
    console.print(f"{target}: {steps:,} steps of {episodes:,} episodes in {folder}", soft_wrap=True)


def _export_model(what: ExportFormat, target: str, folder: Path, kind: GgufPrecision, max_shard_size: str) -> None:
    from flows.publishing.model_export import export_gguf, export_hf
    from lineage.layout import Layout
    from lineage.reports.formatting import format_count

    layout = Layout.find()
    if what is ExportFormat.hf:
        written = export_hf(layout, target, folder, max_shard_size)
    else:
        written = export_gguf(layout, target, folder, kind.value)
    wide = f"{written.kept_wider} {'matrix' if written.kept_wider == 1 else 'matrices'}"
    wider = f"; {wide} kept in f16, their rows are no multiple of 32" * bool(written.kept_wider)
    size = f"{written.bytes / 1e6:,.1f} MB"
    console.print(
        f"{written.model}: {format_count(written.files, 'file')}, {size} in {written.folder}{wider}", soft_wrap=True
    )


def query(
    sql: Annotated[str, typer.Argument(help="A DuckDB query over steps, inputs, outputs, files, metrics, curves, ...")],
    as_json: AsJson = False,
) -> None:
    """Query manifests, curves, evaluations and trajectories with SQL."""
    from flows.history.audit import show_query
    from lineage.layout import Layout

    show_query(sql, Layout.find(), console, as_json)
