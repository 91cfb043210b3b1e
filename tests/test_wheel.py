"""A wheel built from this checkout, installed where the checkout is not on the path, and used from another folder.

The environment is a bare one that takes third-party packages from the one that runs the tests; a `.pth` file adds their
folder without what an editable install put there, so that nothing of the checkout can be imported.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from schemas.package import PACKAGES

ROOT = Path(__file__).parent.parent
SOURCES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
VERSION = importlib.metadata.version("posttrain")
RECIPE = """
schema_version: 1
name: small
seed: 7
stages:
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}
    max_length: 48
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8, style: short}]
    teacher: answer
  cold_start: {kind: sft, model: base, data: lessons, learning_rate: 2e-3, max_steps: 2, max_length: 48}
  exam:
    kind: evaluate
    models: {cold_start: cold_start}
    tasks: [{use: reasoning_gym, family: spell_backward, split: test, size: 4, style: short}]
    rewards: ["my_lab:brevity"]
    max_completion_length: 8
"""
REWARD = """
from {prefix}schemas.errors import StepError


def brevity(rows: list[dict], completions: list[str], *, limit: int = 12) -> list[float | None]:
    if len(rows) != len(completions):
        raise StepError("one completion per row")
    return [min(1.0, limit / max(1, len(text))) for text in completions]
"""
REINFORCED = """
name: reinforced
extends: small.yaml
stages:
  prompts:
    kind: synthesize
    problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8, style: short}]
    emit: prompts
  rl: {kind: rl, model: cold_start, prompts: prompts, algorithm: grpo, rewards: ["learning.rewards.answers:exact"],
       max_completion_length: 8, max_steps: 1}
"""


def builder():
    """The module setup.py."""
    spec = importlib.util.spec_from_file_location("posttrain_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Installed:
    """The wheel in an environment of its own, and a folder outside the checkout to use it from."""

    def __init__(self, place: Path, wheel: Path):
        venv.create(place / "env", symlinks=True)
        self.python = place / "env" / "bin" / "python"
        pip("--python", self.python, "install", "--quiet", "--no-deps", wheel)
        self.packages = next((place / "env" / "lib").glob("python*/site-packages"))
        self.top_level = sorted(path.name for path in self.packages.iterdir())
        (self.packages / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.folder = place / "lab"
        self.folder.mkdir()
        write_recipes(self.folder, "posttrain.")

    def run(self, *words: str) -> str:
        """What `posttrain WORDS` prints; it must end well."""
        return run([self.python.with_name("posttrain"), *words], self.folder)


def write_recipes(folder: Path, prefix: str) -> None:
    (folder / "small.yaml").write_text(RECIPE)
    (folder / "reinforced.yaml").write_text(REINFORCED)
    (folder / "my_lab.py").write_text(REWARD.format(prefix=prefix))


def run(command: list, folder: Path, **variables: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "POSTTRAIN_ROOT", "COLUMNS")}
    env = {**kept, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*words: object) -> None:
    run([sys.executable, "-m", "pip", *words], ROOT, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built without network from a copy of the sources: setuptools leaves files where it builds."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in (*PACKAGES, "posttrain", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source / name)
    pip("wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", built, source)
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


def keys(printed: str) -> dict[str, tuple[str, list[str]]]:
    """Key and modules of every step of a plan that was printed as JSON."""
    return {step["name"]: (step["key"], sorted(step["code"])) for step in json.loads(printed)["steps"]}


def test_one_package_and_its_metadata_are_installed(installed):
    assert installed.top_level == ["posttrain", f"posttrain-{VERSION}.dist-info"]
    assert (installed.packages / installed.top_level[1] / "top_level.txt").read_text() == "posttrain\n"


def test_the_wheel_holds_every_module_and_the_data_that_they_read(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("posttrain/")}
    modules = {f"posttrain/{path.relative_to(ROOT)}" for path in SOURCES}
    recipes = {f"posttrain/{path.relative_to(ROOT)}" for path in (ROOT / "recipes").rglob("*.yaml")}
    own = {f"posttrain/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    kinds = [(ROOT / "lineage").rglob(kind) for kind in ("*.j2", "*.json")]
    templates = {f"posttrain/{path.relative_to(ROOT)}" for paths in kinds for path in paths}
    assert {Path(name).suffix for name in templates} == {".j2", ".json"}
    assert names == modules | recipes | own | templates


def test_every_import_of_ours_in_the_wheel_has_the_prefix(installed):
    imported = set()
    for path in (installed.packages / "posttrain").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    assert not [name for name in imported if name and name.partition(".")[0] in PACKAGES]
    assert "posttrain.schemas.package" in imported


def test_nothing_of_the_checkout_can_be_imported_there(installed):
    program = "import importlib.util as u; print([n for n in {} if u.find_spec(n)])"
    assert run([installed.python, "-c", program.format(PACKAGES)], installed.folder) == "[]\n"
    where = run([installed.python, "-c", "import posttrain.flows.cli as m; print(m.__file__)"], installed.folder)
    assert Path(where.strip()) == installed.packages / "posttrain" / "flows" / "cli.py"


def test_the_command_prints_its_version_and_completes(installed):
    assert installed.run("--version") == f"posttrain {VERSION}\n"
    assert run([installed.python, "-m", "posttrain", "--version"], installed.folder) == f"posttrain {VERSION}\n"
    command = installed.python.with_name("posttrain")
    words = {"_POSTTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": "posttrain val", "COMP_CWORD": "1"}
    assert run([command], installed.folder, **words).split() == ["validate"]


def test_recipes_validate_from_any_folder(installed):
    assert installed.run("init", "start.yaml").startswith("wrote start.yaml")
    printed = installed.run("validate", "start.yaml", "small.yaml", "reinforced.yaml")
    assert printed.splitlines() == [
        "start.yaml: ok, 5 steps",
        "small.yaml: ok, 4 steps",
        "reinforced.yaml: ok, 6 steps",
    ]


def test_keys_are_those_of_the_checkout(installed, tmp_path):
    write_recipes(tmp_path, "")
    command = [sys.executable, "-m", "flows.cli", "plan", "reinforced.yaml", "--json"]
    here = keys(run(command, tmp_path, PYTHONPATH=str(ROOT)))
    assert keys(installed.run("plan", "reinforced.yaml", "--json")) == here
    assert {"my_lab", "learning.data.chat"} <= set(here["exam"][1])
    assert "learning.rewards.answers" in here["rl"][1]


def test_a_recipe_runs_and_finds_the_reward_beside_it(installed):
    printed = installed.run("run", "small.yaml", "--executor", "inprocess")
    assert "exam: done in" in printed
    planned = json.loads(installed.run("plan", "small.yaml", "--json"))
    kinds = {step["name"]: step["kind"] for step in planned["steps"]}
    for name, (key, _) in keys(json.dumps(planned)).items():
        manifest = installed.folder / f".posttrain/artifacts/{kinds[name]}-{key[:16]}/manifest.json"
        made = json.loads(manifest.read_text())
        assert (made["commit"], made["versions"]["posttrain"]) == (None, VERSION)
    assert made["metrics"]["problems"] == 4
    assert "4 of 4 steps are cached" in installed.run("plan", "small.yaml")


@pytest.mark.slow
def test_a_recipe_runs_on_ray(installed):
    printed = installed.run("run", "small.yaml", "--fresh", "--to", "cold_start")
    assert "cold_start: done in" in printed


def test_the_build_changes_imports_and_nothing_else():
    source = b'''"""from learning.rewards import x"""
import json  # import tasks
from schemas.errors import StepError
import learning.lookup as lookup


def of(name):
    from tasks import sft; from learning.models import (
        policy,
    )
    return "learning.rewards", f"tasks.{name}"
'''
    built = builder().with_prefix(source, set(PACKAGES), "m.py").decode()
    expected = source.decode()
    for name in ("from schemas.errors", "import learning.lookup", "from tasks import sft", "from learning.models"):
        word, _, module = name.partition(" ")
        expected = expected.replace(name, f"{word} posttrain.{module}")
    assert built == expected


def test_the_build_refuses_an_import_that_binds_a_name_of_ours():
    with pytest.raises(ValueError, match=r"m\.py:2: write `from \.\.\. import \.\.\.` for `import learning.lookup`"):
        builder().with_prefix(b"import json\nimport learning.lookup\n", set(PACKAGES), "m.py")


def test_modules_that_are_named_in_code_are_imported_through_import_path():
    """`import_module(...)` and `python -m ...` with a name of ours would miss the prefix in the wheel.

    The command of the verifier server is a constant, which is mapped where it is used.
    """
    assert "*map(import_path, COMMAND)" in (ROOT / "learning/reasoning_gym/verifiers.py").read_text()
    bare = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            named = []
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                named = node.args[:1]
            elif isinstance(node, ast.List | ast.Tuple):
                named = [b for a, b in pairwise(node.elts) if isinstance(a, ast.Constant) and a.value == "-m"]
            bare += [f"{path.relative_to(ROOT)}: {ast.unparse(name)}" for name in named if not is_safe(name)]
    assert bare == ["learning/reasoning_gym/verifiers.py: 'learning.reasoning_gym.verifier_server'"]


def is_safe(name: ast.expr) -> bool:
    if isinstance(name, ast.Constant):
        return name.value.partition(".")[0] not in PACKAGES
    if isinstance(name, ast.Attribute) and name.attr == "__name__":  # of an imported module: it has the prefix
        return True
    return isinstance(name, ast.Call) and ast.unparse(name.func) == "import_path"


def test_recipes_name_our_modules_without_the_prefix(tmp_path):
    from schemas.errors import RecipeError
    from schemas.recipe.load import load_recipe

    write_recipes(tmp_path, "")
    text = REINFORCED.replace("learning.rewards.answers", "posttrain.learning.rewards.answers")
    (tmp_path / "prefixed.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"without `posttrain\.`[\s\S]*write `learning\.rewards\.answers:exact`"):
        load_recipe(tmp_path / "prefixed.yaml")
