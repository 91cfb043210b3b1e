"""The MCP server of `posttrain mcp`: each tool is a verb of the command line, run in a process of its own.

A process for each call reads the recipe's own modules as they are now, keeps what they print off the protocol's stream,
and answers with the texts of the command line.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from mcp import types
from mcp.server import MCPServer
from pydantic import Field

from flows.processes.process_env import make_python_path
from schemas.errors import PosttrainError

SECONDS = 300
"""Time limit of a call that reads."""
LONGEST = 200_000
"""Characters of an answer; a longer one is cut."""
PLAIN = re.compile(r"[\w.]+=[\w.+\-, \[\]]*")
"""An override that names no file and no function outside posttrain: both need `:` or `/`."""
INSTRUCTIONS = """\
posttrain runs multi-stage post-training of language models from YAML recipes. Call `validate` after every edit of a \
recipe, `plan` to see which steps would run and why, `explain` for one step, `status`, `logs` and `report` for a run. \
Recipes are files in the folder of this server."""

Recipe = Annotated[str, Field(description="A recipe YAML, relative to the folder of the server.")]
Profile = Annotated[str | None, Field(description="A profile of the recipe.")]
Overrides = Annotated[list[str], Field(description="stages.NAME.KEY=VALUE: numbers, words, lists of them.")]
Tiny = Annotated[bool, Field(description="Small models, few rows, few steps: the same graph.")]
Run = Annotated[str | None, Field(description="A run, the start of its name, or latest~1; default: the latest.")]
Step = Annotated[str, Field(description="A step of the recipe.")]


class Refusal(PosttrainError):
    """A call that names something that the server does not offer."""


class Verbs:
    """Verbs of the command line as tools; recipes and artifact folders are below `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()

    def readers(self) -> list[Callable[..., types.CallToolResult]]:
        """Return the tools that start nothing and write nothing outside the state folder."""
        return [
            self.recipes,
            self.validate,
            self.plan,
            self.explain,
            self.show,
            self.runs,
            self.status,
            self.logs,
            self.report,
            self.lineage,
            self.query,
        ]

    def starters(self) -> list[Callable[..., types.CallToolResult]]:
        """Return the tools that start runs."""
        return [self.run, self.resume]

    def recipes(self) -> types.CallToolResult:
        """List the recipes in `recipes/`, with descriptions, as JSON."""
        return self._read("ls", "--json")

    def validate(
        self,
        recipe: Recipe,
        profile: Profile = None,
        overrides: Overrides = [],  # noqa: B006
        tiny: Tiny = False,
    ) -> types.CallToolResult:
        """Check a recipe; errors have file:line:column and what to do. Rewards of the recipe's own code are called."""
        return self._read("validate", *self._options(profile, overrides, tiny), operands=[recipe])

    def plan(
        self,
        recipe: Recipe,
        profile: Profile = None,
        overrides: Overrides = [],  # noqa: B006
        tiny: Tiny = False,
        memory: Annotated[bool, Field(description="Estimate the memory of every step instead.")] = False,
        full: Annotated[bool, Field(description="The whole plan as JSON: settings, inputs and keys.")] = False,
    ) -> types.CallToolResult:
        """Show what a run would do: HIT or MISS for every step, with the first difference from an earlier run."""
        flags = ["--memory"] * memory + ["--json"] * full
        return self._read("plan", *self._options(profile, overrides, tiny), *flags, operands=[recipe])

    def explain(
        self,
        recipe: Recipe,
        step: Step,
        profile: Profile = None,
        overrides: Overrides = [],  # noqa: B006
    ) -> types.CallToolResult:
        """Explain why a step would run again, field by field, or name the run that its artifact comes from."""
        return self._read("why", *self._options(profile, overrides), operands=[recipe, step])

    def show(
        self,
        recipe: Recipe,
        profile: Profile = None,
        overrides: Overrides = [],  # noqa: B006
        full: Annotated[bool, Field(description="All keys, not only those that differ from defaults.")] = False,
    ) -> types.CallToolResult:
        """Print a recipe as plain stages: what extends, profiles, variables and presets come to."""
        return self._read("show", *self._options(profile, overrides), *["--full"] * full, operands=[recipe])

    def runs(self) -> types.CallToolResult:
        """List the runs, the latest first, with recipe and outcome, as JSON."""
        return self._read("runs", "--json")

    def status(self, run: Run = None) -> types.CallToolResult:
        """Show the state of every step of a run, as JSON."""
        return self._read("status", "--json", operands=_given(run))

    def logs(self, step: Step, run: Run = None) -> types.CallToolResult:
        """Print the log of a step."""
        return self._read("logs", *(f"--run={name}" for name in _given(run)), operands=[step])

    def report(self, run: Run = None) -> types.CallToolResult:
        """Print metrics, scores with intervals, gates and notices of a run's finished steps, as JSON."""
        return self._read("report", "--json", operands=_given(run))

    def lineage(
        self, target: Annotated[str, Field(description="A step, key, digest, run, artifact folder, row or source.")]
    ) -> types.CallToolResult:
        """Show the ancestors of a target, up to rows of data, and its descendants, as JSON."""
        return self._read("lineage", "--json", operands=[target])

    def query(
        self, sql: Annotated[str, Field(description="A DuckDB query over steps, inputs, outputs, metrics, curves, ...")]
    ) -> types.CallToolResult:
        """Query manifests, curves and evaluations with SQL; it can only read. The rows are JSON."""
        return self._call(["query", "--json"], [sql.replace("\0", "")])

    def run(
        self,
        recipe: Recipe,
        profile: Profile = None,
        overrides: Overrides = [],  # noqa: B006
        tiny: Tiny = False,
        seconds: Annotated[float, Field(ge=0, le=SECONDS, description="Wait this long for its end.")] = 60,
    ) -> types.CallToolResult:
        """Run a recipe. A run that takes longer than `seconds` continues by itself: follow it with `runs`, `status`."""
        return self._start("run", *self._options(profile, overrides, tiny), operands=[recipe], seconds=seconds)

    def resume(
        self,
        run: Run = None,
        seconds: Annotated[float, Field(ge=0, le=SECONDS, description="Wait this long for its end.")] = 60,
    ) -> types.CallToolResult:
        """Resume an interrupted or failed run with its original plan."""
        return self._start("resume", operands=_given(run), seconds=seconds)

    def _options(self, profile: str | None, overrides: Sequence[str], tiny: bool = False) -> list[str]:
        profiles = [f"--profile={profile}" for profile in _given(profile)]
        return [*profiles, *(f"--set={override}" for override in overrides), *["--tiny"] * tiny]

    def _read(self, *words: str, operands: Sequence[str] = ()) -> types.CallToolResult:
        """Return what a verb prints, after a look at the paths and overrides that it is given."""
        try:
            self._check(words, operands)
        except Refusal as refusal:
            return _answer(str(refusal), is_error=True)
        return self._call(words, operands)

    def _call(self, words: Sequence[str], operands: Sequence[str]) -> types.CallToolResult:
        try:
            done = subprocess.run(
                _make_command(words, operands),
                cwd=self.folder,
                env=_make_env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return _answer(f"posttrain {words[0]} was ended after {SECONDS} seconds", is_error=True)
        return _answer(done.stdout.decode(errors="replace"), is_error=done.returncode != 0)

    def _start(self, *words: str, operands: Sequence[str], seconds: float) -> types.CallToolResult:
        """Start a verb that outlives this server, and return what it prints within `seconds`."""
        try:
            self._check(words, operands)
        except Refusal as refusal:
            return _answer(str(refusal), is_error=True)
        with tempfile.TemporaryFile() as output:  # a pipe would end with the server, and so would the run
            process = subprocess.Popen(
                _make_command(words, operands),
                cwd=self.folder,
                env=_make_env(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code is None:
            note = f"the run continues (process {process.pid}); follow it with the tools `runs`, `status` and `logs`"
            return _answer(f"{text}{note}", is_error=False)
        return _answer(f"{text}exit code {code}", is_error=code != 0)

    def _check(self, words: Sequence[str], operands: Sequence[str]) -> None:
        """Raise Refusal for paths outside the folder, and for overrides that could name files or code."""
        for word in (*words, *operands):
            if not word.isprintable():
                raise Refusal(f"{word!r} has characters that cannot be printed")
            if word.startswith("--set=") and not PLAIN.fullmatch(word.removeprefix("--set=")):
                raise Refusal(
                    f"{word.removeprefix('--set=')}: overrides of this server are KEY=VALUE with numbers, words and "
                    "lists of them; write other changes into the recipe"
                )
        for operand in operands:
            if not (self.folder / operand).resolve().is_relative_to(self.folder):
                raise Refusal(f"{operand} is outside the folder of this server, {self.folder}")


def make_server(folder: Path, allow_run: bool = False) -> MCPServer:
    """Return a server whose tools read the checkout around a folder; with `allow_run` also `run` and `resume`."""
    verbs = Verbs(folder)
    server = MCPServer("posttrain", instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in verbs.readers():
        hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        server.add_tool(tool, annotations=hints, structured_output=False)
    for tool in verbs.starters() if allow_run else ():
        hints = types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
        server.add_tool(tool, annotations=hints, structured_output=False)
    return server


def _given(value: str | None) -> list[str]:
    return [] if value is None else [value]


def _make_command(words: Sequence[str], operands: Sequence[str]) -> list[str]:
    """Return the command; operands follow `--`, so that none is read as an option."""
    return [sys.executable, "-m", "posttrain", *words, "--", *operands]


def _make_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": make_python_path()}


def _answer(text: str, is_error: bool) -> types.CallToolResult:
    left_out = len(text) - LONGEST
    shown = text if left_out <= 0 else f"{text[:LONGEST]}\n({left_out} characters left out)"
    return types.CallToolResult(content=[types.TextContent(type="text", text=shown)], is_error=is_error)
