import json

import pytest

from learning.curation.private_data import PATTERNS, licensed, without_private_data
from learning.lookup import bind
from schemas.use import RowFilterUse


def row(text, **more):
    return {"prompt": [{"content": "?"}], "completion": [{"content": text}], **more}


FOUND = {
    "email": ["write to ada.lovelace+x@mail.example.org.", "a@b.io"],
    "phone": ["call +49 30 901820", "+1 (212) 555-0199"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004"],
    "ip_address": ["8.8.8.8 answers", "It came from 8.8.8.8."],
    "key": ["-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----"],
    "token": ["hf_" + "a" * 34, "AKIA" + "A1" * 8, "ghp_" + "b" * 36],
    "password": ["password = 'hunter22'", 'API_KEY: "abcdef123"'],
}
CLEAN = {
    "email": ["a @ b.io", "@decorator", "user@localhost"],
    "phone": ["1 + 2345 + 678", "+5", "3+49=52"],
    "iban": ["DE89 3704 0044 0532 0130 01", "ABCD"],
    "card": ["4111 1111 1111 1112", "0000 0000 0000 0000", "12345678901234567890123"],
    "ip_address": ["127.0.0.1", "192.168.1.7", "1.2.3", "999.1.1.1", "8.8.8.8.8", "8.8.8.8.example"],
    "key": ["BEGIN PUBLIC KEY"],
    "token": ["hf_short", "task-" + "a" * 30],
    "password": ["the password is long", "password = input()", "password = '[PASSWORD]'", "secret: '{{your-secret}}'"],
}


@pytest.mark.parametrize("kind", PATTERNS)
def test_each_kind_is_found_and_what_only_looks_alike_is_not(kind):
    for text in FOUND[kind]:
        assert not without_private_data(row(text), kinds=[kind]), text
        assert not without_private_data(row(text))
        assert without_private_data(row(text), kinds=[kind], part="prompt")
    for text in CLEAN[kind]:
        assert without_private_data(row(text), kinds=[kind]), text


@pytest.mark.parametrize("text", ["1" * 100_000, "a." * 50_000, "+1 " * 30_000, "AB12 " * 20_000, "secret:" * 20_000])
def test_long_texts_take_little_time(text):
    assert without_private_data(row(text)) in (True, False)


def test_licences_are_read_from_the_metadata():
    mit = row("x", metadata=json.dumps({"license": "MIT"}))
    assert licensed(mit, allowed=["mit", "apache-2.0"])
    assert not licensed(mit, allowed=["apache-2.0"])
    assert not licensed(row("x", metadata="{}"), allowed=["mit"])
    assert not licensed(row("x", metadata=None), allowed=["mit"])
    assert licensed(row("x", metadata=json.dumps({"source": "CC0"})), allowed=["cc0"], field="source")


def test_recipes_find_the_filters_by_name():
    bound = bind(RowFilterUse.model_validate({"use": "without_private_data", "kinds": ["email"]}), "filters.0", {})
    assert not bound.at(0)(row("a@b.io"))
