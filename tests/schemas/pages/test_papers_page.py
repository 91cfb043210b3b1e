"""docs/papers.md follows from recipes and tests, and is up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.pages.evidence import Evidence, SeedResult, Spent, digest_outcome, judge, write_evidence
from schemas.pages.papers_page import make_papers_page, read_title, strip_title
from schemas.recipe.load import load_recipe

ROOT = Path(__file__).parents[3]
OUTCOME = """
outcome: {claim: x, method: a, against: b}
stages:
  a: {kind: init, config: {model_type: qwen3}, tokenizer: {use: characters}, max_length: 8}
  b: {kind: init, config: {model_type: qwen3}, tokenizer: {use: characters}, max_length: 9}
  report:
    kind: evaluate
    models: {a: a, b: b}
    limit: 1
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 3}]
"""


def make_evidence(name, gains, recipe):
    """Return evidence of these differences, measured with a recipe."""
    spent = Spent(completions=1, tokens=2)
    seeds = [
        SeedResult(
            seed=i, method=g, against=0.0, method_spent=spent, against_spent=spent, method_key="", against_key=""
        )
        for i, g in enumerate(gains, start=1)
    ]
    loaded, value = load_recipe(recipe), sum(gains) / len(gains)
    return Evidence(
        id=name,
        digest=digest_outcome(loaded),
        outcome=loaded.head.outcome,
        confidence=0.95,
        problems=9,
        seeds=tuple(seeds),
        value=value,
        low=value - 0.1,
        high=value + 0.1,
        problems_error=0.0,
        verdict=judge(value - 0.1, value + 0.1),
        machine={},
    )


@pytest.fixture
def house(tmp_path):
    for folder in ("recipes/papers", "tests/papers"):
        (tmp_path / folder).mkdir(parents=True)
    header = "# yaml-language-server: $schema=x\n#\n# One: a | Title\n# (Doe 2025)\n#\n# Claim  a\nname: one-two\n"
    (tmp_path / "recipes/papers/one-two.yaml").write_text(header)
    (tmp_path / "recipes/papers/untested.yaml").write_text(header)
    docstring = (
        '"""One: a | title: proven to\nthe last digit.\n\nNot shown: all\nelse.\n\nA note.\n"""\nimport nowhere\n'
    )
    (tmp_path / "tests/papers/test_paper_one_two.py").write_text(docstring)
    return tmp_path


def test_only_what_has_recipe_and_test_is_listed_and_nothing_is_imported(house):
    rows = [line for line in make_papers_page(house).splitlines() if line.startswith("|")][2:]
    assert rows == [
        "| One: a \\| Title (Doe 2025) | [one-two](../recipes/papers/one-two.yaml) | "
        "[Proven to the last digit.](../tests/papers/test_paper_one_two.py) | — | All else. | — |"
    ]


def test_the_title_is_taken_off_what_is_proven():
    assert strip_title("Part I: Tricks? A Dive (X)", "Part I: Tricks?: means: this") == "Means: this"
    assert strip_title("Part I: Tricks? A Dive (X)", "Tricks: none") == "Tricks: none"
    assert strip_title("Title", "proven at once") == "Proven at once"


def test_a_recipe_without_a_header_and_a_test_without_a_docstring_are_refused(house):
    recipe = house / "recipes/papers/one-two.yaml"
    recipe.write_text("name: x\n# Late\n")
    with pytest.raises(ValueError, match=r"one-two.yaml: the header must begin"):
        read_title(recipe)
    recipe.write_text("# Title\n")
    (house / "tests/papers/test_paper_one_two.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="the docstring must say"):
        make_papers_page(house)


def test_the_page_is_up_to_date():
    printed = subprocess.run(
        [sys.executable, "-m", "schemas.pages.papers_page"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert (ROOT / "docs/papers.md").read_text(encoding="utf-8") == printed, "run `make docs`"


def test_levels_are_counted_from_files(house):
    for folder in ("tests/papers/mutants", "docs/evidence"):
        (house / folder).mkdir(parents=True)
    assert "Of 2 recipes" in make_papers_page(house)
    (house / "tests/papers/mutants/untested.yaml").write_text("[]")
    assert "- 1 have breaks" in make_papers_page(house)
    assert "- 0 have an outcome" in make_papers_page(house)
    (house / "recipes/outcomes").mkdir()
    recipe = house / "recipes/outcomes/one-two.yaml"
    recipe.write_text(OUTCOME)
    write_evidence(make_evidence("one-two", [0.1, 0.2], recipe), house / "docs/evidence/one-two.json")
    assert "- 1 have an outcome" in make_papers_page(house)
    assert "1 reproduced, 0 level, 0 no effect, 0 refuted at this size;" in make_papers_page(house)
    assert "| [reproduced](evidence/README.md#one-two): +0.150 [+0.050, +0.250] |" in make_papers_page(house)
    recipe.write_text(OUTCOME.replace("limit: 1", "limit: 2"))
    assert "| [out of date](evidence/README.md#one-two): +0.150" in make_papers_page(house)
    assert "0 reproduced, 0 level, 0 no effect, 0 refuted at this size, 1 out of date;" in make_papers_page(house)
    assert "- 0 take a model and problems, or an environment, of yours" in make_papers_page(house)
    assert "- 0 of these ran on" in make_papers_page(house)
