import re
from pathlib import Path

import pytest

from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe

BAD = sorted((Path(__file__).parent.parent.parent / "recipes" / "bad").glob("*.yaml"))


def test_there_are_at_least_forty():
    assert len(BAD) >= 40


@pytest.mark.parametrize("file", BAD, ids=lambda p: p.stem)
def test_a_malformed_recipe_is_refused_at_its_place_with_advice(file):
    """The header of each file says where the error is expected, and parts of its message and advice."""
    expected, advised = file.read_text().splitlines()[:2]
    line, column, message = re.fullmatch(r"# expect: (\d+):(\d+): (.*)", expected).groups()
    advice = advised.removeprefix("# advice:").strip()
    with pytest.raises(RecipeError) as caught:
        load_recipe(file)
    assert caught.value.exit_code == 3
    problems = [(p.line, p.column, p.message, p.advice) for p in caught.value.problems]
    fits = [t for t in problems if t[:2] == (int(line), int(column)) and message in t[2] and advice in t[3]]
    assert fits, problems
    assert all(p.file == str(file) for p in caught.value.problems)
