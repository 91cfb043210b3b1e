"""Environment `ml`: a competition in machine learning, with programs in the sandbox and a board of other scores.

(MLE-Dojo, Qiang et al. 2025, arXiv:2505.07782: request information, validate code, execute code; HumanRank.)
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from learning.data.leaderboards import METRICS, find_position, rank_score
from learning.data.rows import Row, read_metadata
from learning.environments.interaction import SUBMIT, Length
from learning.environments.protocol import Outcome
from learning.sandbox.run import available, run
from schemas.base import Schema
from schemas.errors import StepError

SUBMISSION = "submission.csv"
LARGEST = 65_536
"""Most bytes of a submission that are read."""
HELP = "actions: request_info TOPIC, validate_code CODE, execute_code CODE, submit"
Board = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]


class Competition(Schema):
    """What a row's metadata says."""

    info: dict[str, str] = {}
    """Topic to text, for those who ask."""
    files: dict[str, str]
    """Files that every program finds in its folder, such as `train.csv` and `test.csv`."""
    prelude: str = ""
    """What begins every program, for example an import of a module among the files."""
    answers: list[str] = Field(min_length=1)
    """The right value of each line of the submission, which no program sees."""
    metric: str
    leaderboard: Board | dict[str, Board]
    """Scores of other people; several boards, such as `public` and `private`, are averaged."""


@dataclass(frozen=True)
class Trial:
    """What came of a program."""

    shown: str
    """Its output, or why it failed."""
    ok: bool
    score: float | None = None
    """Of the submission that it left, by the competition's metric."""


class Environment:
    """Ask for information, validate and execute programs, and submit: who fits best within the budget?

    `request_info TOPIC` tells what the row has on a topic. `validate_code CODE` runs a program and shows its output;
    `execute_code CODE` also scores the file `submission.csv` that it leaves, one value per line in its last column. A
    program that fails shows its error. An execution earns what it adds to the best rank so far, the share of the board
    that is equalled or beaten (HumanRank); with `score: raw` what it adds to the best score, in the unit of the metric,
    above the last of the board. `submit`, or the `budget` of executions, ends the episode. `remember` keeps the results
    of equal programs, for those without randomness. Programs run in the sandbox with `seconds` and `memory_mb`.
    """

    def __init__(
        self,
        *,
        budget: Annotated[int, Field(ge=1)] | None = None,
        score: Literal["position", "raw"] = "position",
        longest: Length = 1000,
        remember: bool = False,
        seconds: Annotated[float, Field(gt=0)] = 10.0,
        memory_mb: Annotated[int, Field(ge=64)] = 256,
    ) -> None:
        """Cut outputs to `longest` characters. Raise StepError if there is no sandbox."""
        if reason := available():
            raise StepError(f"env ml: {reason}")
        self.budget, self.raw, self.longest = budget, score == "raw", longest
        self.seconds, self.memory_mb = seconds, memory_mb
        self.memory: dict[tuple[str, str], Trial] | None = {} if remember else None

    def begin(self, row: Row, seed: int) -> "Entry":
        """Return an episode. Raise StepError for a row that is no competition."""
        return Entry(self, row, read_competition(row))

    def attempt(self, row: Row, about: Competition, code: str) -> Trial:
        """Return what came of a program."""
        key = (str(row["id"]), code)
        if self.memory is None:
            return self._run(about, code)
        if key not in self.memory:
            self.memory[key] = self._run(about, code)
        return self.memory[key]

    def _run(self, about: Competition, code: str) -> Trial:
        how = {"seconds": self.seconds, "memory_mb": self.memory_mb}
        ran = run(about.prelude + code, files=about.files, keep=[SUBMISSION], **how)
        if ran.code or ran.timed_out or ran.reason:
            why = ran.reason or (ran.stderr.strip().splitlines() or [f"exit code {ran.code}"])[-1]
            return Trial(f"error: {why}", False)
        if SUBMISSION not in ran.files:
            return Trial(ran.stdout.rstrip("\n"), True)
        try:
            values = read_submission(ran.files[SUBMISSION], len(about.answers))
            return Trial(ran.stdout.rstrip("\n"), True, METRICS[about.metric][0](values, about.answers))
        except (ValueError, OverflowError) as error:
            return Trial(f"error: {SUBMISSION}: {error}"[: self.longest], False)


class Entry:
    """One competitor."""

    def __init__(self, world: Environment, row: Row, about: Competition) -> None:
        self.world, self.row, self.about = world, row, about
        self.best: float | None = None
        self.submissions = 0

    def step(self, action: str) -> Outcome:
        """Carry out an action."""
        verb, _, rest = action.strip().replace("\n", " \n", 1).partition(" ")
        if verb == SUBMIT:
            return Outcome(done=True)
        if verb == "request_info":
            topic = rest.strip()
            known = topic in self.about.info
            return self._show(self.about.info[topic] if known else f"topics: {', '.join(self.about.info)}", known)
        if verb not in ("validate_code", "execute_code"):
            return self._show(HELP, False)
        trial = self.world.attempt(self.row, self.about, rest.strip())
        if verb == "validate_code":
            return self._show(trial.shown or "no error", trial.ok)
        return self._execute(trial)

    def _execute(self, trial: Trial) -> Outcome:
        """Count an execution, and its submission if there is one."""
        self.submissions += 1
        over = self.submissions == self.world.budget
        if trial.score is None:
            why = trial.shown if not trial.ok else f"there is no {SUBMISSION}"
            return Outcome("" if over else self._cut(why), done=over, ok=False)
        before, now = self._value(self.best), self._value(trial.score)
        if self.best is None or now > before:
            self.best = trial.score
        boards, more = self._boards()
        place = "/".join(f"{find_position(trial.score, board, more)} of {len(board)}" for board in boards)
        shown = self._cut(f"{self.about.metric} {trial.score:.3g}, rank {place}")
        return Outcome("" if over else shown, done=over, reward=max(0.0, now - before))

    def _value(self, score: float | None) -> float:
        """Return what a score is worth; 0 without one, or behind the whole board."""
        if score is None:
            return 0.0
        boards, more = self._boards()
        if not self.world.raw:
            return rank_score(score, boards, more)
        signed = [entry if more else -entry for board in boards for entry in board]
        return max(0.0, (score if more else -score) - min(signed))

    def _boards(self) -> tuple[list[list[float]], bool]:
        board = self.about.leaderboard
        return (list(board.values()) if isinstance(board, dict) else [board]), METRICS[self.about.metric][1]

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.world.longest else f"{text[: self.world.longest - 3]}..."

    def _show(self, text: str, ok: bool) -> Outcome:
        return Outcome(self._cut(text), ok=ok)

    @property
    def state_name(self) -> str:
        """Return the state by which turns are compared with each other: the best score and the executions."""
        return f"{self.best} {self.submissions}"

    def save(self) -> Row:
        """Return the state as JSON."""
        return {"best": self.best, "submissions": self.submissions}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.best, self.submissions = saved["best"], saved["submissions"]


def read_submission(content: bytes, count: int) -> list[str]:
    """Return the last column of a file with one line per answer, and perhaps a header; raise ValueError for others."""
    if len(content) > LARGEST:
        raise ValueError(f"more than {LARGEST} bytes")
    lines = [line for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
    if len(lines) not in (count, count + 1):
        raise ValueError(f"{len(lines)} lines, not {count}")
    return [line.rpartition(",")[2].strip().strip('"') for line in lines[len(lines) - count :]]


def read_competition(row: Row) -> Competition:
    """Return what a row's metadata say of its competition. Raise StepError if they say too little."""
    metadata = read_metadata(row)
    try:
        about = Competition.model_validate(
            {name: metadata[name] for name in Competition.model_fields if name in metadata}
        )
    except ValidationError as error:
        raise StepError(
            f"env ml: row {row.get('id')}: its metadata need `files`, `answers` (texts), `metric` and `leaderboard`, a "
            f"list of scores: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
        ) from error
    if about.metric not in METRICS:
        raise StepError(f"env ml: row {row.get('id')}: metric `{about.metric}`; there is: {', '.join(METRICS)}")
    try:
        METRICS[about.metric][0](about.answers, about.answers)
    except ValueError as error:
        raise StepError(f"env ml: row {row.get('id')}: its `answers` do not suit {about.metric}: {error}") from error
    return about
