import pytest

from schemas.pages.reference_page import make_reference_page
from schemas.stages.union import KINDS


@pytest.fixture(scope="module")
def page():
    return make_reference_page()


def test_every_key_of_every_kind_is_on_the_page_with_its_meaning(page):
    for kind, model in KINDS.items():
        assert f"## kind: {kind}\n" in page
        for name, spec in model.model_fields.items():
            if name == "kind" or name in getattr(model, "filled_in", ()):  # those no recipe may set
                continue
            assert f"| `{name}` |" in page
            assert " ".join(spec.description.replace("|", "\\|").split()) in page


def test_functions_are_listed_with_options_and_defaults(page):
    assert "- `clipped` PPO's clipped loss" in page
    assert "\n  - `epsilon`: number or schedule, default `0.2`" in page
    assert "\n  - `k`: whole number ≥ 1, required" in page
    assert "`answers.exact`" in page
    assert "`answers.normalise_answer`" not in page
