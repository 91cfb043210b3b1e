"""Whatever is done to a good recipe: either it still loads, or it is a RecipeError whose problems have places."""

import random
from pathlib import Path

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

GOOD = sorted((Path(__file__).parent.parent.parent / "recipes" / "good").glob("*.yaml"))
MUTATIONS = 2000
WORDS = [
    "null",
    "true",
    "-1",
    "1e-4",
    "1e999",
    "[]",
    "{}",
    "''",
    "yes",
    "~",
    "0x1f",
    "base",
    "rounds.tune",
    "previous.tune",
    "${vars.size}",
    "${vars.nope}",
    "${matrix.lr}",
    "${env:HOME}",
    "${",
    "$${",
    "hub:a/b",
    "path:.",
    "kind: rl",
    "*a",
    "&a 1",
    "!!int 3",
    "{use: clipped}",
    "{linear: {from: 1, to: 0, steps: 3}}",
    "[[[[1]]]]",
    "9" * 400,
    "é",
    "use",
    "repeat",
    "answers.exact",
    "os:system",
    "schemas.source.tree:merge_nodes",
    "..",
    "a.b.c",
    "tuned@lr=0.001",
    "extends: parent.yaml",
    "<<: [1]",
]


def mutate(text: str, rng: random.Random) -> bytes:
    """One to three of: drop, double or swap lines, rename a word, put in a value, cut, put in bytes."""
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        match rng.randrange(9):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[at])
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case 4:
                head, colon, _ = lines[at].partition(":")
                lines[at] = f"{head}{colon} {rng.choice(WORDS)}"
            case 5:
                lines[at] = " " * rng.randrange(8) + lines[at].lstrip()
            case 6:
                words = lines[at].split(" ")
                words[rng.randrange(len(words))] = rng.choice(WORDS)
                lines[at] = " ".join(words)
            case 7:
                place = rng.randrange(len(text) + 1)
                lines = (text[:place] + rng.choice("[]{}:,#&*!|>'\"%@`-? \t\n\0\x85\ufeff") + text[place:]).split("\n")
            case 8:
                a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
                lines = (text[:a] + text[b:] if b - a < 200 else text[:a]).split("\n")
        text = "\n".join(lines) or " "
    data = text.encode()
    if rng.random() < 0.05:
        place = rng.randrange(len(data) + 1)
        data = data[:place] + bytes([rng.randrange(256)]) + data[place:]
    return data


def load(file: Path) -> RecipeError | None:
    try:
        load_recipe(file)
    except RecipeError as error:
        return error
    return None


@pytest.mark.parametrize("part", range(4))
def test_mutated_recipes_never_give_a_traceback(part, tmp_path):
    rng = random.Random(part)
    texts = [f.read_text() for f in GOOD]
    for source in GOOD:
        (tmp_path / source.name).write_text(source.read_text())
    file = tmp_path / "mutated.yaml"
    refused = 0
    for _ in range(MUTATIONS // 4):
        file.write_bytes(mutate(rng.choice(texts), rng))
        error = load(file)
        if error is not None:
            refused += 1
            assert error.problems
            assert all(p.line >= 1 and p.column >= 1 and p.message for p in error.problems), error
    assert refused > MUTATIONS // 8
