"""Environment `repo`: a Python repository with a failing test, which the model repairs; tests run in the sandbox."""

from typing import Annotated, Any

from pydantic import Field, ValidationError

from learning.data.rows import Row, read_metadata
from learning.environments.interaction import Length, Session, SubmitAfter
from learning.environments.protocol import Outcome
from learning.sandbox.repositories import MAX_TESTS, Check, run_tests
from learning.sandbox.run import available
from learning.tools.file_edits import apply_command
from schemas.base import Schema
from schemas.errors import StepError

Tests = dict[str, Any]
"""Expression, such as `ops.add(2, 3)`, to the value that it should have."""


class Task(Schema):
    """What a row's metadata says."""

    files: dict[str, str] = Field(min_length=1)
    """Path to text."""
    tests: Tests = {}
    """Tests that the command `test` runs."""
    hidden: Tests = {}
    """Further tests of which the model sees nothing."""
    judged: list[str] | None = None
    """Tests that count; null: all."""
    install: str = "path ."
    """How the repository is set up: `path src; with tables`."""
    gold: dict[str, str] = {}
    """The files that the right change writes; for those who check tasks, never shown."""
    packages: dict[str, dict[str, str]] = {}
    """Packages that `install` may ask for: name to files."""


class Environment:
    """Look at files, edit them, run their tests, and submit.

    Commands are `ls`, `cat FILE`, `edit FILE LINE TEXT`, `replace FILE LINE OLD => NEW`, `write FILE TEXT`, `test` and
    `submit`. The reward of `submit` is 1 if all tests pass, also those of the row that are `hidden`, else 0; with
    `partial` the share that passes. `submit_on_edit` submits after the first command that changes a file. `remember`
    keeps the results of equal files, for code without randomness. Whatever is imported runs in the sandbox, all tests
    in one process with `seconds` and `memory_mb`.
    """

    def __init__(
        self,
        *,
        longest: Length = 1000,
        submit_after: SubmitAfter = None,
        submit_on_edit: bool = False,
        partial: bool = False,
        remember: bool = False,
        seconds: Annotated[float, Field(gt=0)] = 5.0,
        memory_mb: Annotated[int, Field(ge=64)] = 256,
    ) -> None:
        """Cut outputs to `longest` characters. Raise StepError if there is no sandbox."""
        if reason := available():
            raise StepError(f"env repo: {reason}")
        self.longest, self.submit_after, self.submit_on_edit = longest, submit_after, submit_on_edit
        self.partial, self.seconds, self.memory_mb = partial, seconds, memory_mb
        self.memory: dict[str, dict[str, Check]] | None = {} if remember else None

    def begin(self, row: Row, seed: int) -> "Repair":
        """Return an episode. Raise StepError for a row without files or tests."""
        return Repair(self, read_task(row))

    def check(self, task: Task, files: dict[str, str], tests: Tests) -> dict[str, Check]:
        """Return what came of tests of the files."""
        how = {"install": task.install, "packages": task.packages}
        if self.memory is None:
            return run_tests(files, tests, **how, seconds=self.seconds, memory_mb=self.memory_mb)
        key = repr((sorted(files.items()), tests, how))
        if key not in self.memory:
            self.memory[key] = run_tests(files, tests, **how, seconds=self.seconds, memory_mb=self.memory_mb)
        return self.memory[key]


class Repair(Session):
    """One repository."""

    def __init__(self, world: Environment, task: Task) -> None:
        super().__init__(world.submit_after, world.longest)
        self.world, self.task, self.files, self.edited = world, task, dict(task.files), False

    def step(self, action: str) -> Outcome:
        """Carry out a command; a `submit` scores the files."""
        before = self.files
        outcome = super().step(action)
        if self.world.submit_on_edit and not outcome.done and self.files != before:
            return Outcome(done=True, reward=self.score(), ok=outcome.ok)
        return outcome

    @property
    def state_name(self) -> str:
        """Return the state by which turns are compared with each other: all files."""
        return repr(sorted(self.files.items()))

    def execute(self, action: str) -> tuple[str, bool]:
        """Carry out a command; `test` runs the tests that are not hidden."""
        if action == "test":
            return describe(self.world.check(self.task, self.files, self.task.tests), self.task.tests), True
        self.files, output, ok = apply_command(self.files, action)
        return output, ok

    def score(self) -> float:
        """Return the reward of the present files."""
        tests = self.task.tests | self.task.hidden
        judged = {name: tests[name] for name in self.task.judged or tests}
        passed = [check.passed for check in self.world.check(self.task, self.files, judged).values()]
        return sum(passed) / len(passed) if self.world.partial else float(all(passed))

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"files": dict(self.files), "commands": self.commands}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.files, self.commands = dict(saved["files"]), saved["commands"]


def describe(checks: dict[str, Check], tests: Tests) -> str:
    """Return a line for each test that fails, and how many pass."""
    lines = [f"{name} is {check.got}, not {tests[name]!r}" for name, check in checks.items() if not check.passed]
    return "\n".join([*lines, f"{len(checks) - len(lines)} of {len(checks)} pass"])


def read_task(row: Row) -> Task:
    """Return what a row's metadata say of its repository. Raise StepError if they say too little."""
    metadata = read_metadata(row)
    try:
        task = Task.model_validate({name: metadata[name] for name in Task.model_fields if name in metadata})
    except ValidationError as error:
        raise StepError(
            f'env repo: row {row.get("id")}: its metadata need `files`, such as {{"ops.py": "…"}}, and `tests`, '
            f'such as {{"ops.add(2, 3)": 5}}: {error.errors()[0]["loc"]}: {error.errors()[0]["msg"]}'
        ) from error
    tests = task.tests | task.hidden
    if strange := [name for name in task.judged or () if name not in tests]:
        raise StepError(f"env repo: row {row.get('id')}: `{strange[0]}` is judged, but none of its `tests`")
    if not tests or len(tests) > MAX_TESTS:
        raise StepError(f"env repo: row {row.get('id')}: it has {len(tests)} `tests`; 1 to {MAX_TESTS} are needed")
    if unnamed := [name for name in tests if "." not in name.partition("(")[0]]:
        raise StepError(
            f"env repo: row {row.get('id')}: the test `{unnamed[0]}` does not begin with a module, as `ops.add(2, 3)`"
        )
    return task
