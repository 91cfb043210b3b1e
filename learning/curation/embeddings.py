"""Vectors of rows without a model: the cosine of two says how similar the rows are.

An embedding is `fn(rows, *, options) -> (R, D)` over the rows of a block; vectors are normalised where they are used.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.curation.row_filters import Part, get_text
from learning.data.rows import Row
from schemas.base import JsonObject

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import HashingVectorizer


def hashed_ngrams(
    rows: list[Row],
    *,
    dim: Annotated[int, Field(ge=2)] = 512,
    ngram: Annotated[int, Field(ge=1)] = 2,
    unit: Literal["words", "characters"] = "words",
    part: Part = "all",
) -> np.ndarray:
    """Counts of the words and n-grams of up to `ngram` words, hashed into `dim` numbers (Weinberger et al. 2009).

    With `unit: characters` n-grams are of characters within words, of 2 up to `ngram`. It needs no model and sees only
    spelling, not meaning.
    """
    counts: Any = _load_vectorizer(dim, ngram, unit).transform(get_text(row, part) for row in rows)
    return counts.toarray().astype(np.float32)


@lru_cache(maxsize=4)
def _load_vectorizer(dim: int, ngram: int, unit: str) -> "HashingVectorizer":
    # Imported here because it takes a second, and other embeddings do not need it.
    from sklearn.feature_extraction.text import HashingVectorizer

    words: JsonObject = {"analyzer": "word", "ngram_range": (1, ngram), "token_pattern": r"\w+", "norm": None}
    characters: JsonObject = {"analyzer": "char_wb", "ngram_range": (min(2, ngram), ngram), "norm": None}
    return HashingVectorizer(n_features=dim, **(words if unit == "words" else characters))
