"""Small Python repositories with wrong operators, for the environment `repo`, and an expert that repairs them.

A module has functions of one line, whose name says what they do: `def add3(n): return n + 3`. A bug is another
operator.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.environments.repo import read_task
from learning.tools.file_edits import apply_command
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
MODULES = ("ops", "core", "util")
CONSTANTS = range(2, 10)
SHOWN, HIDDEN = 5, 7
"""Arguments of the tests: with both no two operators give the same number."""
MAX_DRAWS = 60
"""Problems drawn per row after which there are too few."""
Bugs = Annotated[list[Annotated[int, Field(ge=1, le=3)]], Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=8)]


def write_line(name: str, operator: str | None = None, argument: str = "n") -> str:
    """Return the line of a function, right unless another operator is given."""
    return f"def {name}({argument}): return {argument} {operator or OPERATORS[name[:3]]} {name[3:]}"


def compute_value(name: str, argument: int) -> int:
    """Return what a function should return."""
    constant = int(name[3:])
    return {"add": argument + constant, "sub": argument - constant, "mul": argument * constant}[name[:3]]


def draw_names(rng: np.random.Generator, count: int) -> list[str]:
    """Return different names of functions."""
    names = [f"{verb}{constant}" for verb in OPERATORS for constant in CONSTANTS]
    return [names[int(i)] for i in rng.permutation(len(names))[:count]]


def draw_wrong(rng: np.random.Generator, name: str, other_than: str = "") -> str:
    """Return a wrong operator for a function."""
    wrong = [sign for sign in OPERATORS.values() if sign not in (OPERATORS[name[:3]], other_than)]
    return wrong[int(rng.integers(len(wrong)))]


def write_modules(
    homes: Mapping[str, str], bugs: Mapping[str, str], head: str = "", folder: str = ""
) -> dict[str, str]:
    """Return the files of functions: `homes` is each one's module, `bugs` its wrong operator, `head` a first line."""
    files: dict[str, str] = {}
    for name, module in homes.items():
        path = f"{folder}{module}.py"
        files[path] = f"{files.get(path, head)}{write_line(name, bugs.get(name))}\n"
    return files


def write_tests(homes: Mapping[str, str], argument: int) -> dict[str, int]:
    """Return a test of each function."""
    return {f"{module}.{name}({argument})": compute_value(name, argument) for name, module in homes.items()}


def repositories(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    bugs: Bugs = [1, 2],  # noqa: B006 (never changed)
    functions: Count = 3,
    modules: Annotated[int, Field(ge=1, le=3)] = 1,
    named: bool = False,
    shown: bool = False,
    hinted: bool = False,
    instruction: str = "",
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` repositories to repair for the train or test split, cycling through `bugs`.

    `bugs` is the difficulty: how many of the `functions`, spread over `modules`, have a wrong operator; it is also in
    the row's family (`repo2`). The prompt is `fix it`, or names the wrong functions with `named`, after `instruction`;
    with `shown` the files stand in it, too, and with `hinted` what `repo_guide` says. A repository is in the same split
    with any prompt. Every function has a visible and a hidden test. Raise StepError if there are too few.
    """
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row | None:
        count = min(bugs[len(rows) % len(bugs)], functions)
        names = draw_names(rng, functions)
        homes = {name: MODULES[place % modules] for place, name in enumerate(names)}
        wrong = [names[int(i)] for i in rng.permutation(functions)[:count]]
        files = write_modules(homes, {name: draw_wrong(rng, name) for name in wrong})
        text = f"{instruction}fix {', '.join(wrong) if named else 'it'}"
        if shown:
            text += "".join(f"\n{path}\n{content}" for path, content in files.items()).rstrip("\n")
        about: dict[str, Any] = {
            "files": files,
            "tests": write_tests(homes, SHOWN),
            "hidden": write_tests(homes, HIDDEN),
            "gold": write_modules(homes, {}),
        }
        if hinted:
            text += f"\n{write_hint(files, about['gold'])}"
        if not is_in_split(hash_text(json.dumps(about)), split, test_share):
            return None
        return make_row(f"repo{count}", text, None, about, salt=json.dumps(about))

    return draw_rows(draw, size, MAX_DRAWS * size, "repositories", split, "lower `size`")


def write_hint(files: Mapping[str, str], gold: Mapping[str, str]) -> str:
    """Return which function is the first wrong one of a repository, and its wrong operator."""
    pairs = [(a, b) for path in gold for a, b in zip(files[path].splitlines(), gold[path].splitlines(), strict=True)]
    line = next(a for a, b in pairs if a != b)
    return f"hint: {line.removeprefix('def ').partition('(')[0]} has a wrong {line.split()[-2]}"


def repo_guide(row: Row, rng: np.random.Generator) -> str:
    """Name the first wrong function of a repository and its wrong operator: guidance after a failed attempt."""
    task = read_task(row)
    return write_hint(task.files, task.gold)


def repo_fixer(
    row: Row, rng: np.random.Generator, *, tests: bool = True, looks: bool = True, error_rate: Rate = 0.0
) -> str:
    """Run the tests, look at a file that is wrong, correct its lines one by one, and submit.

    The prompt must show all turns so far. Without `tests` or `looks` the expert leaves those commands out; it lists
    files where they are in a folder. With `error_rate` it writes a wrong operator.
    """
    task = read_task(row)
    said = [str(message["content"]) for message in row["prompt"] if message["role"] == "assistant"]
    files = dict(task.files)
    for command in said:
        files, _, _ = apply_command(files, command)
    if tests and "test" not in said:
        return "test"
    wrong = [path for path, text in task.gold.items() if files.get(path) != text]
    if not wrong:
        return "submit"
    path = wrong[0]
    if looks and "/" in path and "ls" not in said:
        return "ls"
    if looks and f"cat {path}" not in said:
        return f"cat {path}"
    lines, right = files.get(path, "").splitlines(), task.gold[path].splitlines()
    number = next(i for i, line in enumerate(right, 1) if lines[i - 1 : i] != [line])
    sign = right[number - 1].split()[-2]
    if rng.random() < error_rate:
        name = right[number - 1].removeprefix("def ").partition("(")[0]
        sign = draw_wrong(rng, name)
    return f"replace {path} {number} {lines[number - 1].split()[-2]} => {sign}"
