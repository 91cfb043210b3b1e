"""What docs/extending.md adds to the repository, made in a copy of it: found, checked, and in the keys of steps."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.package import PACKAGES

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+) file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [match.groups() for match in BLOCK.finditer((ROOT / "docs/extending.md").read_text())]
OURS = [(language, file, text) for language, file, text in BLOCKS if not file.startswith("my_lab/")]
RECIPE = """
name: extended
stages:
  prompts:
    kind: synthesize
    problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 8, style: short}]
    emit: prompts
  few: {kind: subset, prompts: prompts, size: 3}
  base: {kind: init}
  rl:
    kind: rl
    model: base
    prompts: few
    algorithm: wide_dr_grpo
    rewards: [symmetry.palindrome, environment.earned]
    env: {use: countdown_to_zero, max_turns: 3}
    max_steps: 1
    max_completion_length: 16
"""


def edited(text: str, diff: str) -> str:
    """The text with the lines of a diff that begin with `+`, each after the line of context before it."""
    lines, place = text.splitlines(), -1
    for change in diff.splitlines():
        if change.startswith(" "):
            place = lines.index(change[1:], place + 1)
        elif change.startswith("+"):
            place += 1
            lines.insert(place, change[1:])
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The repository with everything that the page adds."""
    copy = tmp_path_factory.mktemp("extended")
    for name in (*PACKAGES, "recipes", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for language, file, text in OURS:
        path = copy / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(edited(path.read_text(), text) if language == "diff" else text)
    return copy


def run(folder: Path, *words: str) -> str:
    """What a command of Python prints in the copy; it must end well."""
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_only_the_table_of_kinds_and_columns_are_edited():
    files = {language: {file for kind, file, _ in OURS if kind == language} for language in ("diff", "python", "yaml")}
    assert files["diff"] == {"schemas/stages/union.py", "learning/batch/batch_layout.py", "schemas/supplied.py"}
    assert not [file for file in files["python"] | files["yaml"] if (ROOT / file).exists()]
    tests = {file for file in files["python"] if file.startswith("tests/")}
    assert len(tests) == 4  # of a reward, an environment, a kind and a column
    assert len(files["python"] - tests) == 4  # a kind has two files


def test_the_tests_of_the_page_pass(extended):
    tests = [file for _, file, _ in OURS if file.startswith("tests/")]
    assert "4 passed" in run(extended, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_the_code_of_the_page_is_formatted_and_clean(extended):
    ruff = Path(sys.executable).parent / "ruff"
    files = [file for language, file, _ in OURS if language != "yaml"]
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *words, "--no-cache", *files], cwd=extended, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_recipe_of_all_additions_compiles_and_its_keys_hold_their_code(extended):
    (extended / "extended.yaml").write_text(RECIPE)
    plan = json.loads(run(extended, "-m", "flows.cli", "plan", "extended.yaml", "--json"))
    code = {step["name"]: set(step["code"]) for step in plan["steps"]}
    assert "tasks.subset" in code["few"]
    assert {"learning.rewards.symmetry", "learning.environments.countdown_to_zero"} <= code["rl"]


def test_the_reference_shows_them_without_further_edits(extended):
    printed = run(extended, "-m", "flows.cli", "schema", "--markdown")
    added = set(printed.splitlines()) - set((ROOT / "docs/recipes.md").read_text().splitlines())
    for words in ("`wide_dr_grpo`", "`symmetry.palindrome`", "`countdown_to_zero`", "Keep the first rows"):
        assert any(words in line for line in added), words
