import pytest
from pydantic import ValidationError

from schemas.references import RewardModelRef
from schemas.signatures import SignatureError, names, options_model, signature
from schemas.use import EngineUse, FunctionUse, PolicyLossUse, RewardUse

LAB = '''
import torch  # never imported: this module is only read
from typing import Annotated, Literal, Optional
from pydantic import Field
from shapes import Kind, helper
from schemas.references import RewardModelRef
from schemas.schedules import Number

LIMIT = 3

def brief(rows, completions, *, kind: Kind = "a", limit: int = LIMIT, rate: Number = 0.5, top: Optional[int] = None,
          share: Annotated[float, Field(ge=0, le=1)] = 1, names: list[str] = [], model: RewardModelRef,
          odd: torch.Tensor = torch.ones(1), text: "str | None" = None):
    """First line.

    More.
    """
'''
SHAPES = """from typing import Literal
Kind = Literal["a", "b"]
def helper(rows, completions, *, x: int = 1):
    "Taken over."
"""


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "lab_of_signatures.py").write_text(LAB)
    (tmp_path / "shapes.py").write_text(SHAPES)
    return (tmp_path,)


def test_options_are_read_from_the_text(lab):
    found = signature(RewardUse, "lab_of_signatures:brief", lab)
    assert found.summary == "First line."
    assert found.supplied == ("rows", "completions")
    made = options_model(found).model_validate({"model": "judge", "rate": {"linear": {"from": 1, "to": 0, "steps": 2}}})
    assert (made.kind, made.limit, made.top, made.share, made.text) == ("a", 3, None, 1.0, None)
    assert isinstance(made.model, RewardModelRef)
    assert made.rate.at(1) == 0.5
    assert not found.options["odd"].is_literal


@pytest.mark.parametrize(
    "wrong", [{"kind": "c"}, {"limit": "many"}, {"share": 2}, {"names": "x"}, {"rate": "x"}, {"nope": 1}, {}]
)
def test_options_are_held_to_their_annotations(lab, wrong):
    model = options_model(signature(RewardUse, "lab_of_signatures:brief", lab))
    with pytest.raises(ValidationError):
        model.model_validate({**wrong, **({"model": "judge"} if wrong else {})})


def test_functions_taken_from_another_module_are_followed(lab):
    assert signature(RewardUse, "lab_of_signatures:helper", lab).summary == "Taken over."


def test_an_edit_is_seen_at_once(lab):
    assert "limit" in signature(RewardUse, "lab_of_signatures:brief", lab).options
    (lab[0] / "lab_of_signatures.py").write_text("def brief(rows, completions, *, other: int = 1): ...\n")
    assert list(signature(RewardUse, "lab_of_signatures:brief", lab).options) == ["other"]


def test_engines_are_classes_of_modules():
    assert signature(EngineUse, "torch").options["max_slots"].default == 256
    assert "torch" in names(EngineUse)
    assert "protocol" not in names(EngineUse)


@pytest.mark.parametrize("name", ["a:b:c", ":f", "m:", "..:f", "no_module_here:f", "clip", "_private"])
def test_names_that_lead_nowhere_are_told(name):
    with pytest.raises(SignatureError):
        signature(FunctionUse if ":" in name else PolicyLossUse, name)


def test_broken_python_is_told(tmp_path):
    (tmp_path / "broken_lab.py").write_text("def f(:\n")
    with pytest.raises(SignatureError, match="not valid Python"):
        signature(RewardUse, "broken_lab:f", (tmp_path,))
