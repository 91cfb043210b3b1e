import math
import os

import pytest

from schemas.errors import RecipeError
from schemas.source.parser import parse_text, read_source
from schemas.source.tree import Mark


def refused(path):
    with pytest.raises(RecipeError) as caught:
        read_source(path)
    return caught.value.problems[0]


def value_of(text):
    return parse_text(f"a: {text}\n", "f").value["a"].value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("+12", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("~", None),
        ("", None),
        ("null", None),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 3", "3"),
        ("!!float 3", 3),
        ("0b1", "0b1"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("1e", "1e"),
        ("e5", "e5"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    parsed = value_of(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_places_are_those_of_keys_and_values():
    root = parse_text("a:\n  - x\n  - {b: é, c: 3}\n", "f.yaml")
    item = root.value["a"].value[1]
    assert root.value["a"].key == Mark("f.yaml", 1, 1)
    assert item.mark == Mark("f.yaml", 3, 5)
    assert (item.value["c"].key, item.value["c"].mark) == (Mark("f.yaml", 3, 12), Mark("f.yaml", 3, 15))


def test_merge_keys_lie_below_own_keys():
    root = parse_text("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: {b: 4, <<: [*x]}\n", "f")
    assert root.value["y"].plain() == {"a": 1, "b": 3}
    assert root.value["z"].plain() == {"a": 1, "b": 4}


HOSTILE = {
    "brackets": b"[" * 900_000,
    "dashes": b"- " * 400_000,
    "maps": b"{a: " * 200_000,
    "questions": b"? " * 400_000,
    "laughs": b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10)) for c in range(97, 120)),
    "quote": b"'" + b"x" * 900_000,
    "tabs": b"\t" * 900_000,
    "values": b"a: [" + b"1," * 400_000 + b"]",
    "keys": b"".join(b"k%d: 1\n" % i for i in range(40_000)),
    "huge number": b"a: " + b"9" * 900_000,
    "anchors": b"&a " * 300_000,
    "directive": b"%YAML " * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(30)  # some would take all memory, or for ever, if they were read
def test_hostile_texts_are_answered(name, tmp_path):
    file = tmp_path / "r.yaml"
    file.write_bytes(HOSTILE[name])
    if name in ("keys", "huge number"):
        read_source(file)
    else:
        assert refused(file).message


def test_a_hundred_megabytes_are_not_even_read(tmp_path):
    file = tmp_path / "r.yaml"
    with file.open("wb") as out:
        out.truncate(100_000_000)
    assert "100.0 MB is too large" in refused(file).message


def test_files_that_are_none(tmp_path):
    assert refused(tmp_path / "none.yaml").message == "no such file"
    assert refused(tmp_path).message == "this is a folder"
    os.mkfifo(tmp_path / "pipe.yaml")
    assert refused(tmp_path / "pipe.yaml").message == "this is not a regular file"
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert refused(tmp_path / "empty.yaml").message == "the recipe is empty"


def test_not_utf8_names_the_byte_and_its_place(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_bytes("a: é\nb: ".encode() + b"\xff\n")
    problem = refused(file)
    assert (problem.line, problem.column) == (2, 4)
    assert "0xff" in problem.advice
    file.write_bytes("a: 1\n".encode("utf-16"))
    assert "not UTF-8" in refused(file).message


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system ['true']", "!!binary aGk=", "!mine 3", "!!set {a}", "!!timestamp 2024-01-01"],
)
def test_tags_are_refused(tag, tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(f"a: {tag}\n")
    assert "is not allowed" in refused(file).message
