import pytest
from pydantic import ValidationError

import schemas.modules
from learning.lookup import find
from schemas.addresses import find_address
from schemas.control import WorldUse
from schemas.recipe.load import load_recipe
from schemas.references import RewardModelRef
from schemas.signatures import SignatureError, list_definitions, list_names, make_options_model, read_signature
from schemas.use import EngineUse, FunctionUse, PolicyLossUse, RewardUse, Use

LAB = '''
import torch  # never imported: this module is only read
from typing import Annotated, Literal, Optional
from pydantic import Field
from shapes import Kind, helper
from schemas.references import RewardModelRef
from schemas.number_schedules import Number

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
    signature = read_signature(RewardUse, "lab_of_signatures:brief", lab)
    assert signature.summary == "First line."
    assert signature.supplied == ("rows", "completions")
    made = make_options_model(signature).model_validate(
        {"model": "judge", "rate": {"linear": {"from": 1, "to": 0, "steps": 2}}}
    )
    assert (made.kind, made.limit, made.top, made.share, made.text) == ("a", 3, None, 1.0, None)
    assert isinstance(made.model, RewardModelRef)
    assert made.rate.at(1) == 0.5
    assert not signature.options["odd"].is_literal


@pytest.mark.parametrize(
    "wrong", [{"kind": "c"}, {"limit": "many"}, {"share": 2}, {"names": "x"}, {"rate": "x"}, {"nope": 1}, {}]
)
def test_options_are_held_to_their_annotations(lab, wrong):
    model = make_options_model(read_signature(RewardUse, "lab_of_signatures:brief", lab))
    with pytest.raises(ValidationError):
        model.model_validate({**wrong, **({"model": "judge"} if wrong else {})})


def test_functions_taken_from_another_module_are_followed(lab):
    assert read_signature(RewardUse, "lab_of_signatures:helper", lab).summary == "Taken over."


def test_an_edit_is_seen_immediately(lab):
    assert "limit" in read_signature(RewardUse, "lab_of_signatures:brief", lab).options
    (lab[0] / "lab_of_signatures.py").write_text("def brief(rows, completions, *, other: int = 1): ...\n")
    assert list(read_signature(RewardUse, "lab_of_signatures:brief", lab).options) == ["other"]


def test_functions_in_options_are_those_of_their_slot(tmp_path):
    """Lists of them too: their names are checked, and a reference inside them is an input of the step."""
    assert read_signature(WorldUse, "any_of").options["worlds"].type == list[WorldUse]
    recipe = tmp_path / "r.yaml"
    recipe.write_text("""
name: nested
seed: 1
stages:
  plan: {kind: python, function: {use: "learning.control.worlds.temporal_logic:decompose", formula: "F[0,10] A"}}
  walks:
    kind: collect
    policy: random
    env:
      use: any_of
      worlds: [{use: grid}, {use: timed_reach, plan: plan, regions: {A: [-1.0, 0.3, 0.3]}, stride: 0.3}]
    episodes: 2
""")
    (port,) = load_recipe(recipe).steps["walks"].ports
    assert (port.path, port.steps) == ("env.worlds.1.plan", ("plan",))


def test_engines_are_classes_of_modules():
    assert read_signature(EngineUse, "torch").options["max_slots"].default == 256
    assert "torch" in list_names(EngineUse)
    assert "protocol" not in list_names(EngineUse)


@pytest.mark.parametrize("name", ["a:b:c", ":f", "m:", "..:f", "no_module_here:f", "clip", "_private"])
def test_names_that_lead_nowhere_are_reported(name):
    with pytest.raises(SignatureError):
        read_signature(FunctionUse if ":" in name else PolicyLossUse, name)


def slots(kind=Use):
    for slot in kind.__subclasses__():
        yield from (slot, *slots(slot))


@pytest.mark.parametrize("slot", sorted(set(slots()), key=lambda slot: slot.__name__), ids=lambda slot: slot.__name__)
def test_no_name_of_a_slot_is_defined_twice(slot):
    places = list(list_definitions(slot))
    assert len({name for name, _ in places}) == len(places)
    assert all(find_address(slot, name)[0] == module for name, module in places)


def test_a_name_that_two_modules_define_is_refused(tmp_path, monkeypatch):
    for module in ("one", "two"):
        (tmp_path / "home/inner").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"home/inner/{module}.py").write_text("def f(rows, completions): ...\ndef help_it(x): ...\n")
    (tmp_path / "home/three.py").write_text("from home.inner.one import f as g\ndef f(other): ...\ndef h(rows): ...\n")
    monkeypatch.setattr(schemas.modules, "ROOT", tmp_path)

    class Slot(RewardUse):
        home, qualified = ("home",), False

    with pytest.raises(
        SignatureError, match=r"`f` is defined in home\.inner\.one and home\.inner\.two; rename one of them"
    ):
        read_signature(Slot, "f")
    assert list_names(Slot) == ["f", "h"]
    assert find_address(Slot, "h") == ("home.three", "h")
    (tmp_path / "home/inner/two.py").unlink()
    assert find_address(Slot, "f") == ("home.inner.one", "f")


def test_what_is_bound_is_what_was_read():
    for slot in (PolicyLossUse, EngineUse):
        for name in list_names(slot):
            bound = find(slot(use=name))
            assert (bound.__module__, bound.__name__) == find_address(slot, name)


def test_broken_python_is_reported(tmp_path):
    (tmp_path / "broken_lab.py").write_text("def f(:\n")
    with pytest.raises(SignatureError, match="not valid Python"):
        read_signature(RewardUse, "broken_lab:f", (tmp_path,))
