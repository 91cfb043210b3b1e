"""Keys by definition: an edit changes the key of what can depend on it, and of nothing else."""

import pytest

from flows.planning.closure import Closure
from flows.planning.compile import compile_recipe
from flows.planning.definitions import read_facts
from flows.planning.difference import find_first_difference
from flows.planning.facts_cache import FactsCache
from lineage.keys import load_signer
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.recipe.load import load_recipe
from tests.flows.checkout import REPOSITORY

LAB = {
    "lab/__init__.py": "",
    "lab/rewards.py": """
\"\"\"Rewards of the lab.\"\"\"
from functools import lru_cache
import lab.shapes as shapes
from lab.bases import Base, marked
from lab.helpers import one_hop
from lab.limits import LIMIT

SCALE = 2
DEAD = 3

class Judge(Base):
    def score(self, text):
        return one_hop(text) * SCALE

@marked
def scored(rows, completions, *, limit: int = LIMIT):
    \"\"\"Score them.\"\"\"
    from lab.late import finish
    return [finish(shapes.area(Judge().score(text))) for text in completions]

def unused(rows, completions, *, x: int = DEAD):
    return [0.0 for _ in rows]
""",
    "lab/helpers.py": "from lab.deep import two_hops\n\ndef one_hop(text):\n    return two_hops(text)\n\n"
    "def unrelated():\n    return 7\n",
    "lab/deep.py": "TABLE = {'a': 1}\nTABLE |= {'b': 2}\n\ndef two_hops(text):\n    return len(text) + TABLE['a']\n",
    "lab/bases.py": "class Root:\n    size = 1\n\nclass Base(Root):\n    pass\n\n"
    "def marked(function):\n    return function\n\ndef other():\n    return 0\n",
    "lab/shapes.py": "def area(side):\n    return side * 5\n\ndef volume(side):\n    return side * 6\n",
    "lab/limits.py": "LIMIT = 4\nOTHER = 5\n",
    "lab/late.py": "def finish(value):\n    return value + 8\n\ndef start(value):\n    return value + 9\n",
}
ROOT = ("lab.rewards", "scored")


@pytest.fixture
def lab(tmp_path):
    for name, text in LAB.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def code(folder, root=ROOT):
    return Closure([folder]).of([root])


def edit(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def test_the_modules_of_a_function_are_those_that_define_what_it_names(lab):
    names = ["bases", "deep", "helpers", "late", "limits", "rewards", "shapes"]
    assert list(code(lab)) == [f"lab.{name}" for name in names]
    assert list(code(lab, ("lab.helpers", "unrelated"))) == ["lab.helpers"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("deep.py", "len(text)", "len(text) * 2"),  # two hops away
        ("deep.py", "'a': 1", "'a': 2"),  # a constant
        ("deep.py", "'b': 2", "'b': 3"),  # a further assignment to it
        ("bases.py", "size = 1", "size = 2"),  # the base class of a base class
        ("bases.py", "return function", "return lambda *a, **k: function(*a, **k)"),  # a decorator
        ("limits.py", "LIMIT = 4", "LIMIT = 5"),  # a default value
        ("late.py", "value + 8", "value + 80"),  # imported when the function runs
        ("shapes.py", "side * 5", "side * 50"),  # through a module's attribute
        ("rewards.py", "SCALE = 2", "SCALE = 3"),
        ("rewards.py", "from lab.helpers import one_hop", "from lab.helpers import unrelated as one_hop"),
        ("bases.py", "class Root", "print('imported')\n\nclass Root"),  # an effect of an import
        ("bases.py", "def other():", "@print\ndef other():"),  # a decorator with an effect
        ("bases.py", "return 0\n", "return 0\n\nTIME = other()\n"),  # an assignment that calls something
        ("__init__.py", "", "import os\nos.environ['LAB'] = '1'\n"),  # an effect of a package around it
    ],
)
def test_an_edit_of_what_it_uses_changes_the_key(lab, name, old, new):
    before = code(lab)
    edit(lab, f"lab/{name}", old, new)
    assert code(lab) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rewards.py", "Rewards of the lab", "The rewards of the lab"),
        ("rewards.py", "Score them", "Score all of them"),
        ("rewards.py", "    return [finish", "    # a remark\n\n    return [finish"),
        ("rewards.py", "DEAD = 3", "DEAD = 30"),
        ("rewards.py", "0.0 for", "1.0 for"),
        ("helpers.py", "return 7", "return 70"),
        ("bases.py", "return 0", "return 1"),
        ("shapes.py", "side * 6", "side * 60"),
        ("limits.py", "OTHER = 5", "OTHER = 6"),
        ("late.py", "value + 9", "value + 90"),
        ("rewards.py", "import lru_cache", "import cached_property"),
    ],
)
def test_an_edit_of_what_it_does_not_use_changes_nothing(lab, name, old, new):
    before = code(lab)
    edit(lab, f"lab/{name}", old, new)
    assert code(lab) == before


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("helpers.py", "globals()['unrelated']()"),
        ("helpers.py", "eval('unrelated()')"),
        ("helpers.py", "one_hop.__globals__['unrelated']()"),
        ("late.py", "getattr(late, text)(1)"),  # of a module, by a computed name
        ("late.py", "late.__dict__[text](1)"),
        ("late.py", "vars(late)[text](1)"),
        ("late.py", "__import__('importlib').import_module('lab.late')"),
    ],
)
def test_a_name_that_cannot_be_resolved_adds_the_whole_module_to_the_key(lab, name, planted):
    edit(lab, "lab/helpers.py", "    return two_hops", f"    from lab import late\n    {planted}\n    return two_hops")
    before = code(lab)
    edit(lab, f"lab/{name}", "return 7" if name == "helpers.py" else "return value + 9", "return 70")
    assert code(lab) != before


@pytest.mark.parametrize(
    ("planted", "head"),
    [
        ("importlib.import_module(text).f()", "import importlib\n"),
        ("sys.modules[text].f()", "import sys\n"),
        ("modules[text].f()", "from sys import modules\n"),
    ],
)
def test_a_module_of_a_computed_name_makes_all_count_that_is_imported(lab, planted, head):
    edit(lab, "lab/helpers.py", "from lab.deep", f"{head}import lab.shapes\nfrom lab.deep")
    edit(lab, "lab/helpers.py", "    return two_hops", f"    {planted}\n    return two_hops")
    before = code(lab)
    edit(lab, "lab/shapes.py", "side * 6", "side * 60")
    assert code(lab) != before


def test_a_star_import_makes_all_of_the_other_module_count(lab):
    edit(lab, "lab/helpers.py", "from lab.deep import two_hops", "from lab.deep import *\nfrom lab.shapes import *")
    before = code(lab)
    edit(lab, "lab/shapes.py", "side * 6", "side * 60")
    assert code(lab) != before


@pytest.mark.parametrize(
    "root",
    [
        "class Root:\n    def __init_subclass__(cls):\n        ALL.append(cls)",
        "class Root(metaclass=Registry):\n    pass",
    ],
)
def test_subclasses_count_where_a_class_may_learn_of_them(lab, root):
    edit(lab, "lab/bases.py", "class Root:\n    size = 1", f"ALL = []\nRegistry = type\n{root}")
    edit(lab, "lab/limits.py", "OTHER = 5", "from lab.bases import Root\n\nclass Hidden(Root):\n    number = 5")
    before = code(lab)
    edit(lab, "lab/limits.py", "number = 5", "number = 6")
    assert code(lab) != before


def test_modules_and_functions_that_a_text_names_count(lab):
    edit(lab, "lab/helpers.py", "    return two_hops", "    run = ['python', '-m', 'lab.server']\n    return two_hops")
    edit(lab, "lab/shapes.py", "return side * 5", "return 'lab.server:called'")
    (lab / "lab/server.py").write_text("NUMBER = 1\n\ndef called():\n    return 2\n")
    before = code(lab)
    assert "lab.server" in before
    edit(lab, "lab/server.py", "NUMBER = 1", "NUMBER = 2")
    assert code(lab) != before


def test_names_that_a_function_binds_itself_do_not_count(lab):
    before = code(lab)
    edit(lab, "lab/deep.py", "TABLE['a']", "sum(unrelated for unrelated in [1])")
    edit(lab, "lab/deep.py", "def two_hops", "def unrelated():\n    return 1\n\ndef two_hops")
    after = code(lab)
    assert after != before
    edit(lab, "lab/deep.py", "    return 1\n", "    return 2\n")
    assert code(lab) == after


def test_relative_imports_and_reexports_are_followed(lab):
    (lab / "lab/__init__.py").write_text("from .shapes import area as measured\n")
    (lab / "lab/near.py").write_text(
        "from . import deep, measured\n\ndef f(x):\n    return deep.two_hops(measured(x))\n"
    )
    before = code(lab, ("lab.near", "f"))
    assert list(before) == ["lab", "lab.deep", "lab.near", "lab.shapes"]
    edit(lab, "lab/shapes.py", "side * 6", "side * 60")
    assert code(lab, ("lab.near", "f")) == before
    edit(lab, "lab/shapes.py", "side * 5", "side * 50")
    assert code(lab, ("lab.near", "f")) != before


def test_a_circle_of_definitions_ends(lab):
    (lab / "lab/even.py").write_text("from lab.odd import odd\n\ndef even(n):\n    return n == 0 or odd(n - 1)\n")
    (lab / "lab/odd.py").write_text("def odd(n):\n    from lab.even import even\n    return n != 0 and even(n - 1)\n")
    assert list(code(lab, ("lab.even", "even"))) == list(code(lab, ("lab.odd", "odd"))) == ["lab.even", "lab.odd"]


def test_what_is_no_module_or_no_python_is_refused(lab):
    with pytest.raises(PlanError, match=r"no module `lab\.none`"):
        code(lab, ("lab.none", "f"))
    (lab / "lab/broken.py").write_text("def f(:\n")
    with pytest.raises(PlanError, match=r"broken\.py: not valid Python"):
        code(lab, ("lab.broken", "f"))


def test_imports_for_type_checkers_do_not_count():
    hints = (
        b"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import learning.samples\nelse:\n    import json\n"
    )
    assert read_facts(hints, "hints").imports == ["typing:TYPE_CHECKING", "json:"]


def test_house_code_loads_modules_of_a_computed_name_in_six_places():
    """Roots of closures: slots, optional parts, readers of models, counts of a merge. And what scores in the sandbox:
    reasoning-gym's modules, and classes that rewards refer to."""
    places = set()
    for package in ("learning", "tasks", "schemas"):
        for file in (REPOSITORY / package).rglob("*.py"):
            for statement in read_facts(file.read_bytes(), str(file)).statements:
                if statement.is_dynamic:
                    places.add((file.stem, *statement.names))
    assert {names for _, *names in map(tuple, places) for names in names} == {
        "find",
        "load_optional",
        "load_model_reader",
        "sum_totals",
        "replace_evaluators",
        "load_scorer",
    }


def test_a_function_that_an_option_names_counts(lab):
    rewards = "stages.rl_1.rewards=[{use: composite.weighted, of: [{use: 'lab.rewards:scored'}, {use: answers.exact}]}]"

    def compiled():
        recipe = load_recipe(REPOSITORY / "recipes/quickstart.yaml", overrides=(rewards,), home=lab)
        return compile_recipe(recipe, Layout(lab)).step("rl_1")

    before = compiled()
    assert {"lab.rewards", "lab.deep", "learning.rewards.answers", "learning.rewards.composite"} <= set(before.code)
    edit(lab, "lab/deep.py", "len(text)", "len(text) * 2")
    after = compiled()
    assert {name for name in after.code if after.code[name] != before.code[name]} == {"lab.deep"}
    assert after.key != before.key


def test_a_merge_is_keyed_by_its_method_and_by_what_counts_its_totals(tmp_path):
    recipe = load_recipe(REPOSITORY / "recipes/quickstart.yaml")
    assert recipe.code("merged") == (("learning.merge.methods", "linear"),)
    (tmp_path / "plus.yaml").write_text(
        "name: plus\nstages:\n  one: {kind: init}\n  two: {kind: init, seed: 2}\n  merged: {kind: merge, "
        "base_model: one, merge_method: ram_plus, models: [{model: one}, {model: two}]}\n"
    )
    names = {("learning.merge.methods", "ram_plus"), ("learning.merge.methods", "ram_plus_totals")}
    assert set(load_recipe(tmp_path / "plus.yaml").code("merged")) == names


def test_a_step_depends_on_no_toy_task_and_no_paper_that_it_does_not_name(tmp_path):
    plan = compile_recipe(load_recipe(REPOSITORY / "recipes/quickstart.yaml"), Layout(tmp_path))
    losses = "learning.algorithm.policy_losses."
    for name in ("rl_1", "lessons"):
        code = set(plan.step(name).code)
        assert not [module for module in code if module.startswith("learning.toy_tasks")], name
        assert {module for module in code if module.startswith(losses)} <= {f"{losses}policy_gradient"}, name


def test_facts_are_remembered_and_the_keys_are_the_same(tmp_path):
    layout = Layout(tmp_path)
    load_signer(layout)
    recipe = load_recipe(REPOSITORY / "recipes/quickstart.yaml")
    first = [step.key for step in compile_recipe(recipe, layout).steps]
    file = layout.state / "cache" / "definitions"
    written = file.read_bytes()
    assert [step.key for step in compile_recipe(recipe, layout).steps] == first
    assert file.read_bytes() == written


def test_differences_are_reported_by_definition(lab):
    load_signer(Layout(lab))

    def identity():
        known = FactsCache(Layout(lab))
        code = Closure([lab], known).of([ROOT])
        known.save()
        return {"code": code}

    before = identity()
    edit(lab, "lab/rewards.py", "* SCALE", "+ SCALE")
    edit(lab, "lab/rewards.py", "SCALE = 2", "SCALE = 3")
    after = identity()
    assert (
        find_first_difference(before, after, FactsCache(Layout(lab))) == "code: lab/rewards.py changed (SCALE, Judge)"
    )
    assert find_first_difference(before, after) == "code: lab/rewards.py changed"


@pytest.mark.parametrize("damage", ["cut", "edited", "forged", "garbage", "folder"])
def test_a_damaged_record_of_facts_is_not_believed(tmp_path, damage):
    layout = Layout(tmp_path)
    load_signer(layout)
    source = b"LIMIT = 1\n\ndef f():\n    return LIMIT\n"
    known = FactsCache(layout)
    facts = known.facts(source, "a.py")
    known.save()
    file = layout.state / "cache" / "definitions"
    seal, _, body = file.read_bytes().partition(b"\n")
    forged = body.replace(b'"LIMIT"', b'"OTHER"')
    assert forged != body
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(
            {
                "cut": seal + b"\n" + body[:-9],
                "edited": seal + b"\n" + forged,
                "forged": b"0" * 64 + b"\n" + forged,
                "garbage": b"\xff\n[1",
            }[damage]
        )
    assert FactsCache(layout).facts(source, "a.py") == facts
