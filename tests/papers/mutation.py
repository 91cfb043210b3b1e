"""Breaks each row of docs/papers.md on purpose and checks that the row's own test notices.

`tests/papers/mutants/<id>.yaml` lists one-line breaks of a row's recipe and code. `python -m tests.papers.mutation`
applies each of them to a scratch copy of the checkout and runs the row's test there. A mutant on which the test still
passes has survived; one that runs into the time limit hangs. Both are failures of the test.

Heavy libraries are imported once; the test of each mutant runs in a forked process, which starts without any module of
this checkout.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("tests/papers/mutants")
EXPERIMENT = "tests/papers/test_papers_experiments.py::test_a_recipe_is_the_experiment_that_its_row_claims"
LIBRARIES = (
    *("pytest", "numpy", "pydantic", "yaml", "pyarrow.parquet", "torch", "safetensors.torch"),
    *("transformers", "transformers.models.qwen3.modeling_qwen3", "transformers.models.llama.modeling_llama"),
)
"""What nearly every test of a row imports; anything else is imported by the forked process that needs it."""
CONTROL_LIBRARIES = ("gymnasium", "tensordict", "torchrl.modules", "torchrl.objectives", "torchrl.objectives.value")
"""What rows of control import in addition."""
OUTCOMES = {0: "survived", 1: "killed", 2: "killed"}
"""Exit codes of pytest: all passed, some failed, interrupted (a module that does not import)."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A break: `find` is replaced by `replace` in `file`, a path inside the checkout."""

    name: str
    file: str
    find: str
    replace: str

    def applied(self, root: Path) -> str:
        """Return the broken text of the file; raise ValueError unless `find` is in it exactly once."""
        text = (root / self.file).read_text(encoding="utf-8")
        number = text.count(self.find)
        if number != 1:
            raise ValueError(f"{self.file}: `find` matches {number} times: {self.find!r}")
        return text.replace(self.find, self.replace)


@dataclass
class Result:
    """What became of a row's mutants; `broken` are those whose `find` no longer matches once."""

    row: str
    killed: int = 0
    survived: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    failed: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the test passes without a mutant and fails with each of them."""
        return not (self.survived or self.hung or self.broken or self.failed)


def read_mutants(row: str, root: Path = ROOT) -> list[Mutant]:
    """Return the mutants of a row."""
    return [Mutant(**entry) for entry in yaml.safe_load((root / FOLDER / f"{row}.yaml").read_text(encoding="utf-8"))]


def list_rows(root: Path = ROOT) -> list[str]:
    """Return the ids of the rows that have mutants."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.yaml"))


def find_test(row: str) -> str:
    """Return the path of a row's test inside the checkout."""
    return f"tests/papers/test_paper_{row.replace('-', '_')}.py"


def list_files(row: str, root: Path = ROOT) -> set[str]:
    """Return the files that a row rests on: recipe, bases, test, what is broken in it, and what the test imports."""
    files = {find_test(row), f"{FOLDER}/{row}.yaml", *(mutant.file for mutant in read_mutants(row, root))}
    files.add(f"tests/papers/experiments/{row}.yaml")
    recipes = [root / "recipes" / "papers" / f"{row}.yaml"]
    for recipe in recipes:
        files.add(str(recipe.relative_to(root)))
        base = yaml.safe_load(recipe.read_text(encoding="utf-8")).get("extends")
        recipes += [(recipe.parent / base).resolve()] if isinstance(base, str) else []
    imports = [n for n in ast.walk(ast.parse((root / find_test(row)).read_text())) if isinstance(n, ast.ImportFrom)]
    paths = [f"{node.module.replace('.', '/')}.py" for node in imports if node.module]
    return files | {path for path in paths if (root / path).is_file()}


def list_changed(revision: str, root: Path = ROOT) -> set[str]:
    """Return the files that differ from a revision, new ones included."""
    asked = (["diff", "--name-only", revision], ["ls-files", "--others", "--exclude-standard"])
    return {
        name
        for words in asked
        for name in subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    }


def copy_checkout(target: Path, root: Path = ROOT) -> None:
    """Copy the files that git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def is_control(row: str, root: Path = ROOT) -> bool:
    """Return whether a row trains policies for Gymnasium environments."""
    return "kind: evaluate_control" in (root / "recipes" / "papers" / f"{row}.yaml").read_text(encoding="utf-8")


def enter(scratch: Path, libraries: tuple[str, ...]) -> None:
    """Make this process, and those it forks, import the scratch copy and nothing of the checkout."""
    os.chdir(scratch)
    os.environ.update(PYTHONPATH=str(scratch), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
    os.environ.update(TOKENIZERS_PARALLELISM="false", DO_NOT_TRACK="1", MLFLOW_DISABLE_TELEMETRY="true")
    sys.path[:] = [str(scratch), *(entry for entry in sys.path if Path(entry or ".").resolve() not in (ROOT, scratch))]
    for library in libraries:
        importlib.import_module(library)
    for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
        del sys.modules[name]
    gc.freeze()


def run_test(tests: list[str], log: Path, limit: float) -> str:
    """Return `survived`, `killed`, `hung` or `failed to run` for tests in a forked process."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.dont_write_bytecode = True
            pytest = importlib.import_module("pytest")
            words = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow"]
            words += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
            code = int(pytest.main([*words, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    deadline, status = time.monotonic() + limit, None
    while status is None and time.monotonic() < deadline:
        done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else time.sleep(0.02)
    if status is None or status < 0:
        ended = "hung" if status is None else f"failed to run (signal {-status})"
    else:
        ended = OUTCOMES.get(status, f"failed to run (exit {status})")
    with contextlib.suppress(ProcessLookupError):  # unless the test left a process behind
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return ended


def try_row(row: str, scratch: Path, limit: float) -> Result:
    """Run a row's test on the plain copy, then with each of its mutants."""
    result, started, log = Result(row), time.monotonic(), scratch.parent / f"{row}.log"
    record, test = f"{EXPERIMENT}[{row}]", find_test(row)
    plain = run_test([record, test], log, limit)
    if plain != "survived":
        result.failed = f"without a mutant the test {plain.replace('killed', 'fails')}: {log.read_text()[-400:]}"
        return result
    for mutant in read_mutants(row, scratch):
        path = scratch / mutant.file
        kept, stat = path.read_bytes(), path.stat()
        try:
            path.write_text(mutant.applied(scratch), encoding="utf-8")
        except ValueError as error:
            result.broken.append(f"{mutant.name}: {error}")
            continue
        # What a recipe does is looked at first: that takes no model.
        ended = run_test([record], log, limit) if mutant.file.startswith("recipes/") else "survived"
        ended = run_test([test], log, limit) if ended == "survived" else ended
        path.write_bytes(kept)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if ended == "killed":
            result.killed += 1
        elif ended == "survived":
            result.survived.append(mutant.name)
        elif ended == "hung":
            result.hung.append(mutant.name)
        else:
            result.broken.append(f"{mutant.name}: {ended}")
    result.seconds = round(time.monotonic() - started, 1)
    return result


def main() -> int:
    """Print a JSON line per row and one with the sums; return 1 if a mutant survives, hangs or does not apply."""
    parser = argparse.ArgumentParser(prog="python -m tests.papers.mutation", description=__doc__)
    parser.add_argument("rows", nargs="*", help="ids of rows; all by default")
    parser.add_argument("--since", metavar="REV", help="only rows that a change since this revision touches")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one run of a test (120)")
    options = parser.parse_args()
    rows = options.rows or list_rows()
    unknown = sorted(set(rows) - set(list_rows()))
    if unknown:
        parser.error(f"no mutants for {', '.join(unknown)}: {FOLDER}/ has {', '.join(list_rows())}")
    if options.since:
        changed = list_changed(options.since)
        rows = [row for row in rows if changed & list_files(row)]
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Path(folder).resolve() / "checkout"
        if rows:
            copy_checkout(scratch)
            enter(scratch, (*LIBRARIES, *(CONTROL_LIBRARIES if any(map(is_control, rows)) else ())))
        for row in rows:
            results.append(try_row(row, scratch, options.limit))
            print(json.dumps(asdict(results[-1])), flush=True)
        os.chdir(ROOT)
    sums = {name: sum(len(getattr(r, name)) for r in results) for name in ("survived", "hung", "broken")}
    failed = [r.row for r in results if not r.ok]
    print(json.dumps({"rows": len(results), "killed": sum(r.killed for r in results), **sums, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries that were imported for the forks alone complain when they are torn down
