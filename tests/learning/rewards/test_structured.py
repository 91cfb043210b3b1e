import json

import pytest

from learning.rewards import structured
from schemas.errors import StepError

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def score(text, schema=PERSON, **options):
    return structured.valid_json([text], json_schema=schema, **options)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Ada", "age": 36}', 1.0),
        (' {"name": "Ada"}\n', 1.0),
        ('{"name": "ada"}', 0.0),
        ('{"age": 36}', 0.0),
        ('{"name": "Ada", "age": -1}', 0.0),
        ('{"name": "Ada", "more": 1}', 0.0),
        ("{'name': 'Ada'}", 0.0),
        ('{"name": "Ada"} and more', 0.0),
        ('{"name": "Ada", "age": NaN}', 0.0),
        ("", 0.0),
    ],
)
def test_valid_json_is_one(text, expected):
    assert score(text) == expected


def test_the_last_fenced_block_counts():
    text = 'It is\n```json\n{"name": "ada"}\n```\nno:\n```json\n{"name": "Ada"}\n```\n'
    assert score(text, where="fenced") == 1.0
    assert score('```{"name": "Ada"}```', where="fenced") == 1.0
    assert score('{"name": "Ada"}', where="fenced") == 0.0
    assert score('```{"name": "Ada"}', where="fenced") == 0.0


@pytest.mark.parametrize(
    ("at_limit", "beyond"),
    [
        ("[" * 32 + "]" * 32, "[" * 33 + "]" * 33),
        (json.dumps([0] * 999), json.dumps([0] * 1000)),
        ("9" * 100, "9" * 101),
        (json.dumps("a" * 19_998), json.dumps("a" * 19_999)),
        ("1e300", "1e301"),
    ],
)
def test_the_limits_are_those_of_the_documentation(at_limit, beyond):
    assert (score(at_limit, {}), score(beyond, {})) == (1.0, 0.0)


def test_a_pattern_or_a_schema_that_takes_too_long_gives_no_score(monkeypatch):
    monkeypatch.setattr("learning.data.patterns.SECONDS", 0.05)
    assert score(json.dumps("a" * 60 + "!"), {"pattern": "^(a|aa)+$"}) is None
    assert score(json.dumps({"a" * 60 + "!": 1}), {"patternProperties": {"^(a|aa)+$": {}}}) is None
    doubling = {"anyOf": [{"items": {"$ref": "#"}, "minItems": 1, "type": "array"}] * 3}
    assert score("[" * 30 + "]" * 30, doubling) is None


def test_patterns_of_properties_are_checked():
    schema = {"patternProperties": {"^n": {"type": "integer"}}}
    assert [score(text, schema) for text in ('{"n1": 1, "m": "a"}', '{"n1": "a"}', "[]")] == [1.0, 0.0, 1.0]


def test_a_wrong_schema_ends_the_step():
    with pytest.raises(StepError, match=r"structured.valid_json: invalid schema: 'integr' is not valid"):
        score("1", {"type": "integr"})
    with pytest.raises(StepError, match=r"the schema refers to .*other.json"):
        score("1", {"$ref": "other.json"})
    with pytest.raises(StepError, match=r"the schema refers to .*127.0.0.1:9"):
        score("1", {"$ref": "http://127.0.0.1:9/schema.json"})
