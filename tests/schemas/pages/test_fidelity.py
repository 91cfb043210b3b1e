"""docs/fidelity: each comparison names its source, and the page is up to date."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.pages.fidelity import FOLDER, Claim, make_fidelity_page, read_fidelity

ROOT = Path(__file__).parents[3]
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_comparison_is_of_a_recipe_and_complete(file):
    assert (ROOT / "recipes" / "papers" / file.name).is_file()
    assert read_fidelity(file).claims


def test_a_comparison_without_a_source_and_a_doubt_without_a_reason_are_refused():
    with pytest.raises(ValidationError, match="is same: as what"):
        Claim(what="x", here="y", status="same")
    with pytest.raises(ValidationError, match="is deviates: say how"):
        Claim(what="x", here="y", status="deviates", source="a.py:1")
    with pytest.raises(ValidationError, match="is unsure: say how"):
        Claim(what="x", here="y", status="unsure")
    assert Claim(what="x", here="y", status="ours").source == ""


def test_the_page_is_up_to_date(tmp_path):
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == make_fidelity_page(FOLDER), "run `make docs`"
    (tmp_path / "one.yaml").write_text(
        "code: none\nlooked: nowhere\nclaims: [{what: a|b, here: c, status: ours, note: d}]\n"
    )
    page = make_fidelity_page(tmp_path)
    assert page.endswith("## one\n\nCode: none. Read: nowhere.\n\n" + page[page.index("| what") :])
    assert "| a\\|b | c |  | ours | d |" in page
