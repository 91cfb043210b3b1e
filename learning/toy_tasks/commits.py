"""Histories of toy repositories: dated commits that correct, rename or break a line, for the environment `repo`.

Only some commits make good tasks, and every repository is set up in its own way, which its readme tells: where the
modules lie, and which package they import.
"""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.repositories import (
    HIDDEN,
    SHOWN,
    draw_names,
    draw_wrong,
    write_line,
    write_modules,
    write_tests,
)
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, hash_text, is_in_split, make_row, read_metadata
from schemas.errors import StepError

FIRST_DAY, DAYS = date(2024, 1, 1), 700
FOLDERS = ("here", "src", "lib")
PACKAGES = ("", "ones", "tens")
Kind = Literal["fix", "rename", "break", "wrong"]
"""What a commit does: corrects a line; renames an argument; corrects one line and breaks another; replaces a wrong line
by another wrong one."""
LIKELY: dict[str, float] = {"fix": 0.45, "rename": 0.2, "break": 0.15, "wrong": 0.2}
KINDS: tuple[Kind, ...] = ("fix", "rename", "break", "wrong")
MODULE = "ops"
MAX_DRAWS = 60
"""Repositories drawn per row after which there are too few."""


def commits(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    ask: Literal["issue", "install", "label"] = "issue",
    history: Annotated[int, Field(ge=1)] = 3,
    functions: Annotated[int, Field(ge=3, le=8)] = 3,
    vague: Rate = 0.2,
    installed: bool = False,
    kinds: list[Kind] = list(KINDS),  # noqa: B006 (never changed)
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` commits of toy repositories, `history` of each, for the train or test split.

    Metadata have `repo`, `commit` and `date` (`2024-07-13`), the `files` before, the `gold` that the commit writes, the
    `tests` and `hidden` tests after it, the `packages` that there are, a `readme` and the `issue`. The prompt is what
    is asked: the issue for an agent, the readme for who writes the install recipe, or a question about the issue's
    quality; a commit has the same id in all three. `vague` is the share of issues that do not say what is wrong,
    `kinds` are what a commit may do. With `installed` the metadata have a recipe that works. Raise StepError if there
    are too few.
    """
    rng, rows = np.random.default_rng(seed), dict[str, Row]()
    for _ in range(MAX_DRAWS * size):
        name = f"r{int(rng.integers(100_000))}"
        made = _draw_history(rng, name, history, functions, vague, ask, kinds, installed)
        if is_in_split(hash_text(name), split, test_share):
            rows |= {row["id"]: row for row in made}
        if len(rows) >= size:
            return list(rows.values())[:size]
    raise StepError(f"commits: there are only {len(rows)} {split} commits for `size: {size}`; lower `size`")


def _draw_history(
    rng: np.random.Generator,
    repo: str,
    history: int,
    functions: int,
    vague: float,
    ask: str,
    kinds: Sequence[str],
    installed: bool,
) -> list[Row]:
    """Return the commits of one repository, the oldest first."""
    folder, package = FOLDERS[int(rng.integers(3))], PACKAGES[int(rng.integers(3))]
    likely = np.array([LIKELY[kind] for kind in kinds])
    days = np.sort(rng.permutation(DAYS)[:history])
    rows: list[Row] = []
    for day in days:
        kind = kinds[int(rng.choice(len(kinds), p=likely / likely.sum()))]
        said, change = _draw_change(rng, kind, functions, f"import {package}\n" if package else "", folder)
        made_on = (FIRST_DAY + timedelta(days=int(day))).isoformat()
        metadata: dict[str, Any] = {
            "repo": repo,
            "commit": hash_text(f"{repo} {made_on}")[:8],
            "date": made_on,
            **change,
            "packages": {name: {f"{name}.py": f"# {name}\n"} for name in PACKAGES if name},
            "readme": f"{repo}: code in {folder}, needs {package or 'nothing'}",
            "issue": "something is not as it should be" if rng.random() < vague else said,
        }
        if installed:
            metadata["install"] = write_recipe(metadata["readme"])
        issue = f"{repo}: {metadata['issue']}"
        text = {"issue": issue, "install": f"install {metadata['readme']}", "label": f"label {issue}"}[ask]
        row = make_row(f"commit_{kind}", text, None, metadata)
        rows.append(row | {"id": hash_text(f"{repo}@{metadata['commit']}")})
    return rows


def _draw_change(
    rng: np.random.Generator, kind: str, functions: int, head: str, folder: str
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return what an issue says of a commit, and its files before and after with their tests."""
    homes = dict.fromkeys(draw_names(rng, functions), MODULE)
    first, second = (list(homes)[int(i)] for i in rng.permutation(functions)[:2])
    wrong = draw_wrong(rng, first)
    place = "" if folder == "here" else f"{folder}/"
    before = {} if kind == "rename" else {first: wrong}
    after = {"break": {second: draw_wrong(rng, second)}, "wrong": {first: draw_wrong(rng, first, wrong)}}.get(kind, {})
    files, gold = (write_modules(homes, bugs, head, place) for bugs in (before, after))
    if kind == "rename":
        gold = {path: text.replace(write_line(first), write_line(first, argument="m")) for path, text in gold.items()}
    said = f"{first} is hard to read" if kind == "rename" else f"{first} gives a wrong number"
    tests = {"tests": write_tests(homes, SHOWN), "hidden": write_tests(homes, HIDDEN)}
    return said, {"files": files, "gold": gold, **tests}


def write_recipe(readme: str) -> str:
    """Return the install recipe that a readme asks for."""
    folder, package = readme.partition("code in ")[2].split(", needs ")
    return f"path {'.' if folder == 'here' else folder}" + ("" if package == "nothing" else f"; with {package}")


def installer(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the install recipe of a readme: `path src; with tens`; at `error_rate` one of another readme."""
    readme = read_metadata(row, "commits", lambda about: str(about["readme"]))
    if rng.random() < error_rate:
        readme = f"code in {FOLDERS[int(rng.integers(3))]}, needs {PACKAGES[int(rng.integers(3))] or 'nothing'}"
    return write_recipe(readme)


def issue_labeller(row: Row, rng: np.random.Generator) -> str:
    """Say whether an issue is `clear` or `vague`."""
    issue = read_metadata(row, "commits", lambda about: str(about["issue"]))
    return "vague" if issue.startswith("something") else "clear"
