import pytest

from learning.curation.language import language
from schemas.errors import StepError

pytest.importorskip("py3langid")

TEXTS = {
    "en": "Where is the station? I do not know what you mean by that, sorry.",
    "de": "Wo ist der Bahnhof? Ich weiß leider nicht, was du damit meinst.",
    "fr": "Où est la gare ? Je ne sais pas ce que tu veux dire, désolé.",
    "es": "¿Dónde está la estación? Lo siento, no sé qué quieres decir.",
    "zh": "车站在哪里？对不起，我不知道你是什么意思。",
}


def row(text):
    return {"prompt": [{"content": ""}], "completion": [{"content": text}]}


@pytest.mark.parametrize("code", TEXTS)
def test_rows_of_the_named_languages_stay(code):
    assert language(row(TEXTS[code]), allowed=[code], min_confidence=0.5)
    assert not language(row(TEXTS[code]), allowed=[other for other in TEXTS if other != code])


def test_numbers_have_no_language_and_mixed_texts_little_confidence():
    assert language(row("12 + 7 = 19"), allowed=["de"])
    assert not language(row("x = 19"), allowed=["xh"], min_confidence=1.0)
    assert language(row("x = 19"), allowed=["xh"], min_confidence=1.0, min_letters=2)
    mixed = row(f"{TEXTS['en']} {TEXTS['fr']} {TEXTS['de']}")
    assert not language(mixed, allowed=list(TEXTS), min_confidence=0.999)


def test_an_unknown_language_is_named():
    with pytest.raises(StepError, match=r"qq cannot be recognised; languages: .*de, "):
        language(row("a"), allowed=["qq", "de"])
