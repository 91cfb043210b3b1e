"""The house stands as docs/architecture.md says."""

import ast
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from schemas.stages.union import KINDS

ROOT = Path(__file__).parent.parent
PACKAGES = ("schemas", "learning", "tasks", "lineage", "flows")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_resolve_to_this_checkout(package):
    assert Path(importlib.import_module(package).__file__).parent == ROOT / package


def test_each_kind_has_a_schema_and_a_task():
    kinds = {path.stem for path in (ROOT / "schemas/stages").glob("*.py")} - {"__init__", "base", "union"}
    assert kinds == set(KINDS)
    for kind in kinds:
        tree = ast.parse((ROOT / "tasks" / f"{kind}.py").read_text())
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert [a.arg for a in functions["run"].args.args] == ["stage", "context"], kind
        assert functions["run"].end_lineno - functions["run"].lineno < 60, kind


def test_files_and_functions_stay_within_budget():
    long_files = {str(p.relative_to(ROOT)): n for p in SOURCES if (n := p.read_text().count("\n")) > 400}
    functions = {
        f"{path.relative_to(ROOT)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    long_functions = {k: n for k, n in functions.items() if n > 60}
    assert (long_files, long_functions) == ({}, {})


def test_import_contracts_hold():
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_import_each_other_in_no_circle():
    """Late imports count: a circle that one of them hides is one."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


LAYERED = PACKAGES
"""Packages whose folders depend on each other in one direction only."""


@pytest.mark.parametrize("package", LAYERED)
def test_no_folders_of_a_package_form_a_strongly_connected_set(package):
    """Late imports count: a folder that reaches itself through another folder is not a layer."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)

    def folder_of(module: str) -> str:
        is_folder = (ROOT / module.replace(".", "/")).is_dir()
        return module if is_folder else module.rpartition(".")[0]

    imported: dict[str, set[str]] = {folder_of(module): set() for module in graph.modules}
    for module in graph.modules:
        folders = {folder_of(other) for other in graph.find_modules_directly_imported_by(module)}
        imported[folder_of(module)] |= folders - {folder_of(module)}
    TopologicalSorter(imported).prepare()


LIGHT = (
    "schemas.recipe.load",
    "schemas.pages.editor_schema",
    "flows.cli",
    "flows.planning.compile",
    "flows.planning.data_sources",
    "flows.planning.own_rewards",
)
"""Modules that `posttrain validate` needs."""


@pytest.mark.parametrize("module", LIGHT)
def test_what_validate_needs_stays_light(module):
    heavy = ("torch", "ray", "prefect", "mlflow", "transformers", "pyarrow")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_of_a_machine_or_registry_is_in_the_repository():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    hosts = ("pypi" + ".org", "python" + "hosted.org", "registry.npm" + "js")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".png", ".parquet"} or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        assert not [h for h in hosts if h in text], name
        assert "/ro" + "ot/" not in text, name
        assert str(ROOT) + "/" not in text, name


LATE_FOLDERS = {"flows/commands": "a command imports what it runs, so that help and completion start at once"}
LATE_IMPORTS = {
    "tensordict": "the extra `control`; imports take seconds",
    "torchrl": "the extra `control`; imports take seconds",
    **dict.fromkeys(
        ("torch", "transformers", "ray", "mlflow", "pyarrow", "scipy", "sklearn", "vllm"), "takes long to import"
    ),
    **dict.fromkeys(("dvc", "dvc_data", "reasoning_gym", "sympy", "accelerate"), "takes long to import"),
    **dict.fromkeys(("httpx", "huggingface_hub", "jinja2", "safetensors"), "few commands need it"),
    **dict.fromkeys(
        ("lm_eval", "datasets", "gymnasium", "optuna", "py3langid", "textarena", "textworld", "minari"),
        "optional dependencies that take long to import",
    ),
    "psycopg2": "an optional dependency",
}
"""Libraries that functions may import, and why; any other such import has a comment beside it."""


def test_every_late_import_has_a_reason():
    unexplained, used = [], set()
    for path in SOURCES:
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if any(name.startswith(f"{folder}/") for folder in LATE_FOLDERS):
            continue
        lines = text.splitlines()
        functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        nodes = [node for function in functions for node in ast.walk(function)]
        late = {node.lineno: node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)}
        explained = -1  # the last line of a block of imports that a comment explains
        for first, node in sorted(late.items()):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
            reasons = {known for known in LATE_IMPORTS if module == known or module.startswith(f"{known}.")}
            used |= reasons
            above, block = lines[first - 2].lstrip(), lines[first - 1 : node.end_lineno]
            if explained == first - 1 or above.startswith("#") or any("  #" in line for line in block):
                explained = node.end_lineno
            elif not reasons:
                unexplained.append(f"{name}:{first}: {module}")
    assert not unexplained
    assert used == LATE_IMPORTS.keys()
