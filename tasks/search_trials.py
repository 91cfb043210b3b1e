"""The trials of a search: trainings with other settings, each evaluated, and what is trained again with other seeds."""

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learning.data.row_journal import RowJournal
from learning.lookup import bind, load_optional
from learning.search.proposals import Proposal
from learning.search.study import Study
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.search_space import Value, replace_setting
from schemas.stages.base import BaseStage
from schemas.stages.search import Search
from tasks.context import Context, Result


@dataclass(frozen=True)
class Trial:
    """Trainings with some settings, one for each seed, and what their models are worth; None if one failed."""

    number: int
    settings: Mapping[str, Value]
    value: float | None
    error: str
    seconds: float
    share: float = 1.0
    """Share of the stage's steps."""
    parent: int | None = None
    """Trial whose models were trained on."""
    values: tuple[float, ...] = ()
    """The value for each seed, whose mean is `value`."""
    environment_steps: int = 0


class Trials:
    """The trials of a search, one after the other; each is trained and evaluated in a folder of its own."""

    def __init__(self, stage: Search, context: Context, read_value: Callable[[Path, str, str], float]) -> None:
        if stage.trained is None or stage.evaluated is None:
            raise StepError("search: its stages are filled in when a recipe is read; run it from a recipe")
        self.stage, self.context, self.read_value = stage, context, read_value
        self.trained, self.evaluated = stage.trained, stage.evaluated
        self.label = next(iter(stage.evaluated.models))
        self.seeds = stage.seeds or [self.trained.seed]
        self.models = context.checkpoints / "models"
        """Models that are kept: the best so far under its trial's number, a folder for each seed."""
        self.baseline: float | None = None
        """Mean value of the stage's own settings with `seeds`; None: it is in the input `evaluate`."""

    def run(self) -> list[Trial]:
        """Return all trials. Raise StepError if the sampler does not repeat those of an earlier attempt."""
        if (refuse := load_optional(self.stage, "refuse_test_splits")) is not None:
            refuse(self.evaluated, replace(self.context, inputs=self._select_inputs("evaluated")))
        study = Study(self.stage, bind(self.stage.sampler, "sampler")(self.context.seed))
        done: list[Trial] = []
        with RowJournal(self.context.checkpoints / "trials.jsonl") as journal:
            self.context.recall(journal.tokens)
            if self.stage.seeds:
                self.baseline = self._recall(journal, "baseline", lambda: self.train_baseline())
            for number in range(self.stage.trials):
                proposal = study.ask()
                if proposal is None or not self._affords(proposal, done):
                    break
                made = self._recall(journal, str(number), lambda p=proposal: self._describe(p, done))
                if not study.keeps_models:
                    self._remove_others([*done, Trial(**made)])
                trial = Trial(**{**made, "values": tuple(made["values"])})
                if (trial.settings, trial.share, trial.parent) != (proposal.settings, proposal.share, proposal.parent):
                    raise StepError(
                        f"search: trial {number} was made with {trial.settings}, and the sampler now gives "
                        f"{proposal.settings}; run it with --fresh"
                    )
                study.tell(trial.value)
                done.append(trial)
                self._report(done)
        if not done:
            raise StepError("search: `max_environment_steps` is less than one trial takes; raise it")
        return done

    def _recall(self, journal: RowJournal, name: str, make: Callable[[], Any]) -> Any:
        """Return what the journal has under a name, or make it and note it."""
        if name not in journal:
            before = self._count_tokens()
            made = make()
            journal.add({name: made}, {name: self._count_tokens() - before})
            journal.flush()
        return journal[name]

    def _describe(self, proposal: Proposal, done: list[Trial]) -> JsonObject:
        trial = self.make_trial(proposal, done)
        return vars(trial) | {"settings": proposal.settings, "values": list(trial.values)}

    def _affords(self, proposal: Proposal, done: Sequence[Trial]) -> bool:
        """Return whether a trial fits into `max_environment_steps` beside those done."""
        most = self.stage.max_environment_steps
        wanted = len(self.seeds) * count_steps(shorten(self._dump(), proposal.share))
        return most is None or sum(trial.environment_steps for trial in done) + wanted <= most

    def make_trial(self, proposal: Proposal, done: list[Trial]) -> Trial:
        """Train and evaluate with each seed; keep the models if they may be needed. A failure is a result."""
        started, number, values, error = time.monotonic(), len(done), [], ""
        folder = self.context.checkpoints / f"trial-{number}"
        steps = 0
        try:
            for place, seed in enumerate(self.seeds):
                inside = folder / f"seed-{seed}" if self.stage.seeds else folder
                start = None if proposal.parent is None else self.models / str(proposal.parent) / str(place)
                values.append(self.train(proposal, seed, inside, start))
                steps += count_steps(shorten(self._dump(), proposal.share))
                self._keep(inside / "trained/outputs/model", f"{number}/{place}")
        except StepError as failure:
            error = str(failure)
            steps += count_steps(shorten(self._dump(), proposal.share))
        value = None if error else math.fsum(values) / len(values)
        seconds = time.monotonic() - started
        shutil.rmtree(folder, ignore_errors=True)
        return Trial(
            number, proposal.settings, value, error, seconds, proposal.share, proposal.parent, tuple(values), steps
        )

    def train_baseline(self) -> float:
        """Return the mean value of the stage's own settings over `seeds`; keep the first seed's model."""
        values = []
        for place, seed in enumerate(self.seeds):
            folder = self.context.checkpoints / f"baseline-{seed}"
            values.append(self.train(Proposal({}), seed, folder, None))
            self._keep(folder / "trained/outputs/model", f"baseline/{place}")
            shutil.rmtree(folder)
        return math.fsum(values) / len(values)

    def test(self, best: Trial | None, done: Sequence[Trial]) -> dict[str, list[float]]:
        """Return the values of the baseline and of the chosen trial with each of `test_seeds`, trained again.

        A trial that went on from others is trained in the same parts. Starts and problems are drawn by the test seed.
        """
        arms = {"baseline": [Proposal({})]} | ({} if best is None else {"best": trace(best, done)})
        tested: dict[str, list[float]] = {}
        if not self.stage.test_seeds:
            return tested
        with RowJournal(self.context.checkpoints / "tests.jsonl") as journal:
            for arm, parts in arms.items():
                tested[arm] = [
                    self._recall(journal, f"{arm}-{seed}", lambda a=arm, p=parts, s=seed: self._test(a, p, s))
                    for seed in self.stage.test_seeds
                ]
        return tested

    def _test(self, arm: str, parts: Sequence[Proposal], seed: int) -> float:
        folder, start, value = self.context.checkpoints / f"test-{arm}-{seed}", None, 0.0
        for number, part in enumerate(parts):
            value = self.train(part, seed, folder / str(number), start, evaluation_seed=seed)
            start = folder / str(number) / "trained/outputs/model"
        if seed == self.stage.test_seeds[0] and start is not None:
            self._keep(start, f"test-{arm}")
        shutil.rmtree(folder)
        return value

    def train(
        self, proposal: Proposal, seed: int | None, folder: Path, start: Path | None, evaluation_seed: int | None = None
    ) -> float:
        """Return the value of a training with some settings, from a model or a new one. Raise StepError if it fails."""
        changed = self._dump()
        for path, value in proposal.settings.items():
            changed = replace_setting(changed, path, value)
        changed = shorten(changed, proposal.share) | {"seed": seed}
        model = folder / "trained/outputs/model"
        inputs = {}
        if start is not None:
            changed["model"], inputs = str(self.stage.train), {"model": start}
        self._run_part("trained", type(self.trained).model_validate(changed), folder / "trained", inputs)
        evaluated: BaseStage = self.evaluated
        if evaluation_seed is not None:
            evaluated = evaluated.model_copy(update={"seed": evaluation_seed})
        self._run_part("evaluated", evaluated, folder / "evaluated", {f"models.{self.label}": model})
        return self.read_value(folder / "evaluated/outputs/report", self.label, self.stage.metric)

    def _dump(self) -> JsonObject:
        return self.trained.model_dump(mode="json", by_alias=True)

    def _run_part(self, part: str, stage: BaseStage, folder: Path, inputs: Mapping[str, Path]) -> Result:
        """Run one of the two stages in a folder, with its inputs; from its own checkpoints if it was interrupted."""
        shutil.rmtree(folder / "outputs", ignore_errors=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        run_task = load_optional(self.stage, part)
        assert run_task is not None
        return run_task(
            stage,
            replace(
                self.context,
                inputs={**self._select_inputs(part), **inputs},
                folder=folder,
                checkpoints=folder / "checkpoints",
                seed=self.context.seed if stage.seed is None else stage.seed,
                on_progress=lambda event: self.context.on_progress(event) if "spent" in event else None,
            ),
        )

    def _select_inputs(self, part: str) -> dict[str, Path]:
        """Return the inputs of one of the two stages under its own names."""
        prefix = f"{part}."
        return {p.removeprefix(prefix): given for p, given in self.context.inputs.items() if p.startswith(prefix)}

    def choose(self, done: Sequence[Trial]) -> Trial | None:
        """Return the best of the trials that trained the longest, of equal ones the first; None if all failed."""
        finished = [trial for trial in done if trial.value is not None]
        longest = max((self._measure_share(trial, done) for trial in finished), default=0.0)
        best = None
        for trial in finished:
            if self._measure_share(trial, done) < longest - 1e-9:
                continue
            if best is None or self.is_better(trial.value, best.value):
                best = trial
        return best

    def _measure_share(self, trial: Trial, done: Sequence[Trial]) -> float:
        return sum(part.share for part in trace(trial, done))

    def is_better(self, one: float | None, other: float | None) -> bool:
        """Return whether a value is better than another."""
        assert one is not None
        assert other is not None
        return one > other if self.stage.direction == "maximize" else one < other

    def _keep(self, model: Path, name: str) -> None:
        """Move a model to those that are kept."""
        kept = self.models / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(model, kept)

    def _remove_others(self, done: list[Trial]) -> None:
        """Remove the models of all trials but the best."""
        best = self.choose(done)
        for model in self.models.iterdir() if self.models.is_dir() else ():
            if model.name.isdecimal() and (best is None or model.name != str(best.number)):
                shutil.rmtree(model)

    def _count_tokens(self) -> int:
        return self.context.spending.tokens + self.context.spending.checkpoint.tokens

    def _report(self, done: list[Trial]) -> None:
        trial, best = done[-1], self.choose(done)
        if trial.value is not None and best is not None and best.value is not None:
            numbers = {name: float(v) for name, v in trial.settings.items() if not isinstance(v, str)}
            self.context.log(trial.number, value=trial.value, best=best.value, **numbers)
        self.context.progress(len(done), self.stage.trials)


def trace(trial: Trial, done: Sequence[Trial]) -> list[Proposal]:
    """Return the parts of a trial's training: those of the trials it went on from, and its own."""
    parts = [Proposal(dict(trial.settings), trial.share)]
    while trial.parent is not None:
        trial = done[trial.parent]
        parts.append(Proposal(dict(trial.settings), trial.share))
    return parts[::-1]


def count_steps(settings: JsonObject) -> int:
    """Return the environment steps of a stage; 0 for other kinds than control."""
    return int(settings.get("environment_steps", 0))


def shorten(settings: JsonObject, share: float) -> JsonObject:
    """Return the settings of a stage of kind control with a share of its steps, at least one."""
    if share == 1:
        return settings
    name = "environment_steps" if settings.get("environment_steps") else "max_steps"
    steps = max(1, int(settings[name] * share + 1e-9))
    changed = {**settings, name: steps}
    if name == "environment_steps":
        changed["learning_starts"] = min(settings["learning_starts"], steps)
    return changed
