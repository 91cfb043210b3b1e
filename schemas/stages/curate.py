"""kind: curate — keep the rows that are worth training on."""

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.evaluation_slots import EvaluationTaskUse
from schemas.expectations import Expectations
from schemas.private_data import Private
from schemas.references import PromptsRef, RowsRef
from schemas.stages.base import BaseStage, ReportSection
from schemas.use import EmbeddingUse, RowFilterUse, RowScoreUse


class FuzzyDedup(Schema):
    """MinHash over character n-grams (Broder 1997): of rows with a high Jaccard similarity only one is kept."""

    threshold: float = Field(default=0.9, gt=0, le=1)
    """Smallest Jaccard similarity at which two rows count as near-duplicates."""
    num_perm: int = Field(default=128, ge=16)
    """Number of hash functions."""
    ngram: int = Field(default=5, ge=1)
    """Characters per shingle."""


class Mask(Schema):
    """Replace private data and secrets by placeholders; the rows stay."""

    kinds: list[Private] | None = Field(default=None, min_length=1)
    """Kinds that are replaced; null: all."""
    placeholder: str = Field(default="[{kind}]", min_length=1)
    """What stands in the place of private data; `{kind}` is its kind in capitals: `[EMAIL]`."""


class SemanticDedup(Schema):
    """Drop rows whose embedding is close to that of an earlier row (SemDeDup, Abbas et al. 2023)."""

    threshold: float = Field(default=0.95, gt=0, le=1)
    """Smallest cosine of two embeddings at which the later row is dropped."""
    embedding: EmbeddingUse = EmbeddingUse(use="hashed_ngrams")
    """Embeddings that are compared."""
    topics: int | None = Field(default=None, ge=2)
    """Compare rows only within this many clusters (k-means); null: each row with all earlier ones."""


class Diversity(Schema):
    """Keep a part of the rows that covers what all of them are about."""

    rows: int | None = Field(default=None, ge=1)
    """Number of rows to keep; either this or `share`."""
    share: float | None = Field(default=None, gt=0, lt=1)
    """Share of the rows to keep."""
    method: Literal["farthest_point", "facility_location", "topics"] = "farthest_point"
    """`farthest_point`: each next row is the one least similar to those chosen (k-center, Sener & Savarese 2018);
    `facility_location`: the one that makes all rows most similar to their nearest chosen row; `topics`: equally many of
    each cluster, at random with the stage's seed."""
    embedding: EmbeddingUse = EmbeddingUse(use="hashed_ngrams")
    """Embeddings that are compared."""
    topics: int | None = Field(default=None, ge=2)
    """Number of clusters (k-means) for `method: topics`."""

    @model_validator(mode="after")
    def require_size(self) -> Self:
        """Require one number of rows, and the number of topics where they are read."""
        if (self.rows is None) == (self.share is None):
            raise ValueError("give `rows` or `share`: how many rows are kept")
        if (self.topics is None) == (self.method == "topics"):
            raise ValueError("`method: topics` needs `topics`, the number of clusters; other methods have none")
        return self


class Decontaminate(Schema):
    """Drop rows that share word n-grams with an evaluation problem."""

    ngram: int = Field(default=8, ge=1)
    """Words per n-gram; a problem with fewer words is compared as a whole."""
    max_overlap: float = Field(default=0.5, ge=0, le=1)
    """Largest share of an evaluation problem's n-grams that a kept row may contain."""
    max_dropped: float = Field(default=1.0, ge=0, le=1)
    """Largest share of rows that may be dropped; the step fails above it. 0: it fails at the first."""
    against: list[EvaluationTaskUse] = []
    """Generators of evaluation problems. Compilation adds those of every evaluation in the recipe."""
    against_prompts: list[PromptsRef] = []
    """Evaluation problems made by a stage. Compilation adds those of every evaluation in the recipe."""


OPTIONAL_CODE = {
    "mask_rows": ("learning.curation.masking", "mask_rows"),
    "drop_by_scores": ("learning.curation.score_limits", "drop_by_scores"),
    "embed_rows": ("learning.curation.embedded_rows", "embed_rows"),
    "drop_similar": ("learning.curation.similar_rows", "drop_similar"),
    "drop_beyond_diversity": ("learning.curation.diversity", "drop_beyond_diversity"),
}
"""Module and name of the code of each optional part."""


class Curate(Expectations, BaseStage):
    """Mask private data, check and filter rows, drop duplicates and evaluation problems; report every dropped row.

    The order is `mask`, schema check, length, `exact_dedup`, `filters`, `fuzzy_dedup`, `semantic_dedup`,
    `decontaminate`, `scores`, `diversity`, `limit` (docs/curation.md).
    """

    drops_rows: ClassVar = True
    report_section: ClassVar = ReportSection(detail="rows")

    kind: Literal["curate"]
    data: RowsRef
    """Rows to curate; the output has the same type."""
    mask: Mask | None = None
    """Replacement of private data; null: rows stay as they are. `filters: [without_private_data]` drops such rows."""
    exact_dedup: bool = True
    """Drop rows whose normalised text is equal to that of an earlier row."""
    fuzzy_dedup: FuzzyDedup | None = None
    """Drop near-duplicates; null: keep them."""
    min_length: int = Field(default=1, ge=0)
    """Fewest characters of prompt and completion together."""
    max_length: int | None = Field(default=None, ge=1)
    """Most characters of prompt and completion together; null: no limit."""
    filters: list[RowFilterUse] = []
    """Filters of single rows: of quality, private data, licences and languages."""
    semantic_dedup: SemanticDedup | None = None
    """Drop rows with nearly the same meaning; null: keep them."""
    scores: list[RowScoreUse] = []
    """Scores by models, one after the other: perplexity, instruction-following difficulty, rewards and judges; each
    with limits outside of which rows are dropped."""
    rows_per_block: int = Field(default=1024, ge=1)
    """Rows that a model scores or embeds together; a killed step continues after the last complete block."""
    decontaminate: Decontaminate | None = Decontaminate()
    """Decontamination; on by default, against every evaluation in the recipe; null: off."""
    diversity: Diversity | None = None
    """Choice of rows that differ from each other; null: all."""
    limit: int | None = Field(default=None, ge=1)
    """Most rows to keep, drawn at random with the stage's seed; null: all."""

    def optional_code(self, asked: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Add the code of each optional part that this stage uses."""
        uses = {
            "mask_rows": self.mask is not None,
            "drop_by_scores": bool(self.scores),
            "embed_rows": self.semantic_dedup is not None or self.diversity is not None,
            "drop_similar": self.semantic_dedup is not None,
            "drop_beyond_diversity": self.diversity is not None,
        }
        return super().optional_code(asked) | {part: code for part, code in OPTIONAL_CODE.items() if uses[part]}

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the rows, with the type of the input, and the report of dropped rows."""
        return {"data": types.get("data", "chat"), "report": "directory"}
