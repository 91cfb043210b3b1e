"""The filter for languages, by py3langid: naive Bayes over byte n-grams (Lui & Baldwin 2012), offline, 97 languages."""

from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from learning.curation.row_filters import Part, Share, get_text
from learning.data.rows import Row
from schemas.errors import StepError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

Code = Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]


def language(
    row: Row,
    *,
    allowed: Annotated[list[Code], Field(min_length=1)],
    min_confidence: Share = 0.0,
    min_letters: Annotated[int, Field(ge=0)] = 1,
    part: Part = "all",
) -> bool:
    """Keep rows in one of the `allowed` languages (ISO 639 codes: `[en, de]`), recognised with `min_confidence`.

    Texts with fewer than `min_letters` letters, such as numbers and formulas, have no language and are kept. Needs the
    extra `languages`. Raise StepError for a code that the library does not know.
    """
    identifier = load_identifier()
    if unknown := sorted(set(allowed) - set(identifier.labels)):
        known = ", ".join(sorted(identifier.labels))
        raise StepError(f"language: {', '.join(unknown)} cannot be recognised; languages: {known}")
    text = get_text(row, part)
    if sum(character.isalpha() for character in text) < min_letters:
        return True
    code, confidence = identifier.classify(text)
    return code in allowed and confidence >= min_confidence


@cache
def load_identifier() -> "LanguageIdentifier":
    """Return the library's model, with confidences from 0 to 1. Raise StepError if it is not installed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # an extra
    except ImportError as error:
        raise StepError("language: py3langid is not installed; install `posttrain[languages]`") from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
