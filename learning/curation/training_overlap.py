"""Evaluation problems among rows that a model was trained on: counted, nothing is dropped."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learning.curation.decontamination import Evaluation, drop_contaminated
from learning.curation.ledger import open_curation
from learning.data.rows import Row
from schemas.stages.curate import Decontaminate

MEMORY = "1GiB"
"""Memory of DuckDB; beyond it, DuckDB spills to disk."""


@dataclass(frozen=True)
class Overlap:
    """Rows of a table that ask an evaluation problem, or hold most of its n-grams, as curations count them."""

    problems: frozenset[str]
    """Ids of the problems among the rows."""
    rows: int
    first: tuple[str, str]
    """Ids of the first such row and of its problem; empty if there is none."""


def find_overlap(folder: Path, problems: Sequence[Row], work: Path, num_threads: int) -> Overlap:
    """Return what the rows in `folder` share with problems, by the defaults of a curation; spills to `work`."""
    settings = Decontaminate()
    with (
        tempfile.TemporaryDirectory(dir=work, prefix="spill-") as spill,
        open_curation(folder, spill=Path(spill), num_threads=num_threads, memory_limit=MEMORY) as rows,
    ):
        drop_contaminated(rows, [Evaluation("", list(problems))], settings.ngram, settings.max_overlap)
        pairs = rows.run(
            """select t.id, p.id from hits join problems p using (problem) join texts t using (row)
               order by row, overlap desc, problem"""
        )
    ids = {row for row, _ in pairs}
    return Overlap(frozenset(problem for _, problem in pairs), len(ids), pairs[0] if pairs else ("", ""))
