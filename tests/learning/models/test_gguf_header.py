"""The first values of GGUF files, read by hand: the tokens that a model allows, and files that are none."""

import struct

import pytest

from learning.models.gguf_header import LFS, find_gguf_problem, read_context_length


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def entry(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


LANGUAGES = entry("general.languages", 9, struct.pack("<IQ", 8, 2) + text("en") + text("de"))
LENGTH = entry("llama.context_length", 4, struct.pack("<I", 8192))
TOKENS = entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 50_000))


def write(folder, *entries):
    file = folder / "model.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    return file


@pytest.mark.parametrize(
    ("entries", "length"),
    [
        ((entry("general.architecture", 8, text("llama")), LANGUAGES, LENGTH), 8192),
        ((entry("general.rope", 6, struct.pack("<f", 1e4)), LENGTH, TOKENS), 8192),
        ((TOKENS, LENGTH), None),
        ((LENGTH[:-2],), None),
        ((entry("odd", 99, b""), LENGTH), None),
        ((struct.pack("<Q", 2**60), LENGTH), None),
        ((), None),
    ],
    ids=["after texts", "before tokens", "after tokens", "cut off", "unknown type", "endless name", "empty"],
)
def test_the_length_is_read_from_the_first_values(entries, length, tmp_path):
    assert read_context_length(write(tmp_path, *entries)) == length


def test_a_file_of_something_else_is_named(tmp_path):
    file = write(tmp_path, LENGTH)
    assert find_gguf_problem(file) is None
    file.write_bytes(LFS + b".github.com/spec/v1")
    assert "git lfs pull" in find_gguf_problem(file)
    assert read_context_length(file) is None
    file.write_bytes(b"PK\x03\x04")
    assert "no GGUF file" in find_gguf_problem(file)
    assert "cannot be read" in find_gguf_problem(tmp_path / "none.gguf")
