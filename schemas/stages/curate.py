"""kind: curate — keep the rows that are worth training on."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.references import PromptsRef, RowsRef
from schemas.stages.base import BaseStage, ReportSection
from schemas.use import ProblemsUse, RowFilterUse


class FuzzyDedup(Schema):
    """MinHash over character n-grams (Broder 1997): rows that are similar enough (Jaccard) count as one."""

    threshold: float = Field(default=0.9, gt=0, le=1)
    """Jaccard similarity from which two rows are near-duplicates."""
    num_perm: int = Field(default=128, ge=16)
    """Hash functions."""
    ngram: int = Field(default=5, ge=1)
    """Characters per shingle."""


class Decontaminate(Schema):
    """Drop rows that share word n-grams with an evaluation problem."""

    ngram: int = Field(default=8, ge=1)
    """Words per n-gram; a shorter problem is compared whole."""
    max_overlap: float = Field(default=0.5, ge=0, le=1)
    """Largest share of an evaluation problem's n-grams that a kept row may contain."""
    max_dropped: float = Field(default=1.0, gt=0, le=1)
    """Fail when a larger share of the rows would be dropped."""
    against: list[ProblemsUse] = []
    """Evaluation problems. Every evaluation of the recipe is added when it is compiled."""
    against_prompts: list[PromptsRef] = []
    """Evaluation problems made by a stage; likewise completed."""


class Curate(BaseStage):
    """Schema check, exact and fuzzy deduplication, quality filters, decontamination; reports every dropped row."""

    drops_rows: ClassVar = True
    report_section: ClassVar = ReportSection(detail="rows")

    kind: Literal["curate"]
    data: RowsRef
    """Rows to curate; the output has the same type."""
    exact_dedup: bool = True
    """Drop rows whose normalised text was seen before."""
    fuzzy_dedup: FuzzyDedup | None = None
    """Drop near-duplicates; null is off."""
    min_length: int = Field(default=1, ge=0)
    """Characters of prompt and completion together."""
    max_length: int | None = Field(default=None, ge=1)
    """Characters of prompt and completion together; null is off."""
    filters: list[RowFilterUse] = []
    """Quality filters that need no language."""
    decontaminate: Decontaminate | None = Decontaminate()
    """On by default, against every evaluation of the recipe; null is off."""
    limit: int | None = Field(default=None, ge=1)
    """Keep at most this many rows, drawn with the seed."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the rows, typed as they came, and the report of what was dropped."""
        return {"data": types.get("data", "chat"), "report": "directory"}
