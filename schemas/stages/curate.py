"""kind: curate — keep the rows that are worth training on."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.expectations import Expectations
from schemas.references import PromptsRef, RowsRef
from schemas.stages.base import BaseStage, ReportSection
from schemas.use import ProblemsUse, RowFilterUse


class FuzzyDedup(Schema):
    """MinHash over character n-grams (Broder 1997): of rows with a high Jaccard similarity only one is kept."""

    threshold: float = Field(default=0.9, gt=0, le=1)
    """Smallest Jaccard similarity at which two rows count as near-duplicates."""
    num_perm: int = Field(default=128, ge=16)
    """Number of hash functions."""
    ngram: int = Field(default=5, ge=1)
    """Characters per shingle."""


class Decontaminate(Schema):
    """Drop rows that share word n-grams with an evaluation problem."""

    ngram: int = Field(default=8, ge=1)
    """Words per n-gram; a problem with fewer words is compared as a whole."""
    max_overlap: float = Field(default=0.5, ge=0, le=1)
    """Largest share of an evaluation problem's n-grams that a kept row may contain."""
    max_dropped: float = Field(default=1.0, ge=0, le=1)
    """Largest share of rows that may be dropped; the step fails above it. 0: it fails at the first."""
    against: list[ProblemsUse] = []
    """Generators of evaluation problems. Compilation adds those of every evaluation in the recipe."""
    against_prompts: list[PromptsRef] = []
    """Evaluation problems made by a stage. Compilation adds those of every evaluation in the recipe."""


class Curate(Expectations, BaseStage):
    """Schema check, exact and fuzzy deduplication, quality filters, decontamination; reports every dropped row."""

    drops_rows: ClassVar = True
    report_section: ClassVar = ReportSection(detail="rows")

    kind: Literal["curate"]
    data: RowsRef
    """Rows to curate; the output has the same type."""
    exact_dedup: bool = True
    """Drop rows whose normalised text is equal to that of an earlier row."""
    fuzzy_dedup: FuzzyDedup | None = None
    """Drop near-duplicates; null: keep them."""
    min_length: int = Field(default=1, ge=0)
    """Fewest characters of prompt and completion together."""
    max_length: int | None = Field(default=None, ge=1)
    """Most characters of prompt and completion together; null: no limit."""
    filters: list[RowFilterUse] = []
    """Quality filters, which do not depend on the language of the text."""
    decontaminate: Decontaminate | None = Decontaminate()
    """Decontamination; on by default, against every evaluation in the recipe; null: off."""
    limit: int | None = Field(default=None, ge=1)
    """Most rows to keep, drawn at random with the stage's seed; null: all."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the rows, with the type of the input, and the report of dropped rows."""
        return {"data": types.get("data", "chat"), "report": "directory"}
