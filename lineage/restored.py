"""Decisions about gates that are missing beside the audit log, written again from it."""

from lineage.approvals import file_of, record_of, text_of
from lineage.auditclaims import AuditCheck
from lineage.auditlog import Entry
from lineage.layout import Layout
from lineage.state_files import records_of
from schemas.whole_files import whole_file


def restore_decisions(layout: Layout, found: AuditCheck) -> list[str]:
    """Write every file of decisions that differs from the log again, whole; returns their paths."""
    wanted: dict[str, list[Entry]] = {}
    for _, entry in sorted(found.decisions.items()):
        wanted.setdefault(str(entry["facts"].get("key")), []).append(entry)
    restored = []
    for key, entries in wanted.items():
        path, lines = file_of(layout, key), [record_of(entry) for entry in entries]
        if records_of(path) != lines:
            with whole_file(path) as fresh:
                fresh.write_bytes(b"".join(map(text_of, lines)))
            restored.append(f"{path}: written again from the audit log")
    return restored
