"""The rewards of a stage, called as its step calls them: for `posttrain test-reward` and before a run."""

import contextlib
import io
import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from flows.planning.apart import call_apart
from flows.planning.called_rewards import REFUSING, is_called
from flows.planning.data_sources import read_first_rows
from flows.processes.secret_values import resolve_references
from learning.evaluation.reward_probes import RewardTest, Score, Scored, run_reward_tests
from learning.lookup import Bound, asked_of, bind
from learning.sampling.scoring import scores_of
from lineage.layout import Layout
from schemas.base import JsonObject
from schemas.errors import PlanError, Problem, StepError
from schemas.recipe.load import Recipe
from schemas.stages.base import RewardCase
from schemas.stages.data import Data
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest
from schemas.use import ProblemsUse, RewardUse

PLAIN = frozenset({"rows", "completions", "groups", "sources", "step", "state", "rng"})
"""What a reward may ask for and still be called without a model."""
KEYS = {"prompt", "answer", "good", "bad", "metadata", "family"}
LONGEST_CALL = 120.0
"""Seconds after which a reward that is called before a run counts as one that never returns."""
TESTED = "a reward of these tests"


def score_reward_tests(recipe: Recipe, step: str, file: Path | None, size: int, layout: Layout) -> list[Scored]:
    """Return the scores of a step's rewards for tests of a file, else its own `tests`, else its problems' answers.

    Raise PlanError for a step without rewards, for rewards that need a model, and for wrong tests.
    """
    if step not in recipe.steps:
        raise PlanError(f"no step `{step}` in {recipe.name}; {suggest(step, recipe.steps, 'steps')}")
    find_own_code(recipe)
    info = recipe.steps[step]
    if not getattr(info.stage, "rewards", []):
        raise PlanError(f"{step}: this step has no rewards")
    tests = read_tests(file) if file else _list_own_tests(info)
    tests = tests or [_make_test(row) for row in find_rows(recipe, layout, step, size)[:size]]
    if not tests:
        raise PlanError(
            f"{step}: its problems are not known before a run; give tests: posttrain test-reward RECIPE {step} "
            "--tests FILE, a YAML list of {prompt, answer, good: [...], bad: [...]}"
        )
    return call_apart(lambda: run_reward_tests(tests, make_score(info)), f"a reward of {step}", None)


def make_score(info: StepInfo) -> Score:
    """Return the weighted sum of a step's rewards. Raise PlanError if it has none, or one that needs a model."""
    from learning.evaluation.sampled_answers import compute_weighted_scores  # imports transformers

    uses: list[RewardUse] = list(getattr(info.stage, "rewards", []))
    if not uses:
        raise PlanError(f"{info.name}: this step has no rewards")
    rewards = [_bind(info, use, i) for i, use in enumerate(uses)]
    return partial(compute_weighted_scores, rewards, [use.weight for use in uses])


def _bind(info: StepInfo, use: RewardUse, index: int) -> Bound:
    if any(port.path.startswith(f"rewards.{index}.") for port in info.ports):
        raise PlanError(
            f"{info.name}: reward {use.use} reads what another step makes; it cannot be tested before a run"
        )
    reward = bind(RewardUse.model_validate(resolve_references(use.model_dump())), f"rewards.{index}")
    if more := sorted(asked_of(reward) - PLAIN):
        raise PlanError(f"{info.name}: reward {use.use} needs {', '.join(more)}; it cannot be tested without a model")
    return reward


def read_tests(file: Path) -> list[RewardTest]:
    """Return the tests of a YAML file. Raise PlanError for anything else than a list of maps with the right keys."""
    try:
        entries: Any = yaml.safe_load(file.read_text())
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror or error}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise PlanError(f"{file}: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise PlanError(f"{file}: must be a list of tests: - {{prompt: 1+2, answer: 3, good: [...], bad: [...]}}")
    return [_read_test(file, number, entry) for number, entry in enumerate(entries, 1)]


def _read_test(file: Path, number: int, entry: Any) -> RewardTest:
    where = f"{file}: test {number}"
    if not isinstance(entry, dict):
        raise PlanError(f"{where}: must be a map with `good`, and if needed {', '.join(sorted(KEYS - {'good'}))}")
    if unknown := [str(key) for key in entry if key not in KEYS]:
        raise PlanError(f"{where}: unknown key `{unknown[0]}`; {suggest(unknown[0], sorted(KEYS), 'keys')}")
    texts: dict[str, list[str]] = {}
    for side in ("good", "bad"):
        given = entry.get(side, [])
        given = given if isinstance(given, list) else [given]
        texts[side] = [str(text) for text in given if not isinstance(text, dict | list)]
        if len(texts[side]) < len(given):
            raise PlanError(f"{where}: `{side}` must be a list of texts")
    if not texts["good"]:
        raise PlanError(f"{where}: `good` must name at least one completion that deserves a high score")
    answer, metadata = entry.get("answer"), entry.get("metadata") or {}
    row = {
        "id": str(number),
        "prompt": [{"role": "user", "content": str(entry.get("prompt", ""))}],
        "answer": None if answer is None else str(answer),
        "family": str(entry.get("family", "tests")),
        "metadata": metadata if isinstance(metadata, str) else json.dumps(metadata),
    }
    return RewardTest(row, texts["good"], texts["bad"])


def _list_own_tests(info: StepInfo) -> list[RewardTest]:
    """Return the `tests` of a stage; their rows are called by their numbers."""
    cases: list[RewardCase] = getattr(info.stage, "tests", [])
    return [
        RewardTest(
            {
                "id": str(number),
                "prompt": [{"role": "user", "content": case.prompt}],
                "answer": case.answer,
                "family": case.family,
                "metadata": json.dumps(case.metadata),
            },
            case.good,
            case.bad,
        )
        for number, case in enumerate(cases, 1)
    ]


def _make_row(name: str, answer: str) -> JsonObject:
    """Return a problem for rewards that do not depend on it."""
    return {"id": name, "prompt": [{"role": "user", "content": ""}], "answer": answer, "family": "", "metadata": "{}"}


def _make_test(row: JsonObject) -> RewardTest:
    """Return a test of a problem whose good answer is the row's own."""
    return RewardTest(row, [row["answer"]] if row.get("answer") else [])


def _shrink(use: ProblemsUse, size: int) -> ProblemsUse:
    """Return a generator that makes at most `size` problems, if it has that option."""
    own = use.options.get("size")
    return use.model_copy(update={"size": min(own, size)}) if isinstance(own, int) else use


def find_rows(
    recipe: Recipe, layout: Layout, step: str, size: int, seen: frozenset[str] = frozenset()
) -> list[JsonObject]:
    """Return some problems of a step, or of the steps that it reads them from; none if other steps make them."""
    info = recipe.steps[step]
    if isinstance(info.stage, Data):
        return read_first_rows(recipe, layout, step, size)
    for name in ("problems", "tasks"):
        uses: list[ProblemsUse] = getattr(info.stage, name, [])
        if uses and not any(port.path.startswith(f"{name}.") for port in info.ports):
            return [row for i, use in enumerate(uses) for row in bind(_shrink(use, size), f"{name}.{i}")()]
    for port in info.ports:
        for earlier in port.steps if "prompts" in port.accepts else ():
            if earlier not in seen and (rows := find_rows(recipe, layout, earlier, size, seen | {step})):
                return rows
    return []


def find_reward_problems(recipe: Recipe, layout: Layout) -> list[Problem]:
    """Return what is wrong with rewards from the user's own code, each called on the answers of two problems."""
    find_own_code(recipe)
    with contextlib.redirect_stdout(sys.stderr):  # what they print would stand amid the JSON of --json
        return [
            info.problem(f"rewards.{index}", text, "try it: posttrain test-reward RECIPE STEP")
            for info in recipe.steps.values()
            for index, use in enumerate(getattr(info.stage, "rewards", []))
            if is_called(use)
            for text in _find_reward_problem(recipe, layout, info, use, index)
        ]


def _find_reward_problem(recipe: Recipe, layout: Layout, info: StepInfo, use: RewardUse, index: int) -> Iterator[str]:
    rows = _list_scored_rows(recipe, layout, info, use)
    what = f"reward {use.use}"

    def call() -> None:
        # The traceback is for the log of a step.
        with contextlib.redirect_stderr(io.StringIO()), limit_calls(what):
            try:
                reward = _bind(info, use, index)
            except PlanError:
                return  # it cannot be called before a run
            if rows:
                given = {"rows": rows, "completions": [row["answer"] for row in rows], "groups": [0, 1]}
                scores_of(reward, 0, given | {"sources": ["policy"] * 2, "step": 0, "seed": 0, "states": {}}, {})

    try:
        call_apart(call, what, LONGEST_CALL)
    except StepError as error:
        yield str(error)


def _list_scored_rows(recipe: Recipe, layout: Layout, info: StepInfo, use: RewardUse) -> list[JsonObject]:
    """Return two problems with answers for a reward; none if they are not known before a run."""
    try:
        rows = [row for row in find_rows(recipe, layout, info.name, 2) if row.get("answer")][:2]
    except (StepError, PlanError):
        return []  # about the problems: their step reports it
    if len(rows) < 2 and use.use in REFUSING:
        return [_make_row(str(number), "1") for number in (1, 2)]
    return rows if len(rows) == 2 else []


@contextlib.contextmanager
def limit_calls(what: str) -> Iterator[None]:
    """Raise StepError, in the main thread, in code that takes longer than LONGEST_CALL; other threads wait for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise StepError(
            f"{what} did not return within {LONGEST_CALL:g} s; two completions are scored before a run, so look for a "
            "loop without an end or a request without a time limit"
        )

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, LONGEST_CALL, 1.0)  # again, should the code have caught the error
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def find_failed_tests(recipe: Recipe) -> list[Problem]:
    """Return a problem for each completion of a stage's `tests` whose score is not in the expected order."""
    find_own_code(recipe)
    return [
        info.problem(path, text, "correct the reward or the test; all scores: posttrain test-reward RECIPE STEP")
        for info in recipe.steps.values()
        for path, text in _list_failures(info)
    ]


def _score_in_time(tests: list[RewardTest], info: StepInfo) -> list[Scored]:
    with limit_calls(TESTED):
        return run_reward_tests(tests, make_score(info))


def _list_failures(info: StepInfo) -> Iterator[tuple[str, str]]:
    """Yield key and message of each completion of a stage's `tests` that fails; probes are for `test-reward`."""
    tests = _list_own_tests(info)
    if not tests:
        return
    try:
        scored = call_apart(partial(_score_in_time, tests, info), TESTED, LONGEST_CALL)
    except (PlanError, StepError) as error:
        yield "tests", str(error).removeprefix(f"{info.name}: ")
        return
    for one in scored:
        if not one.ok and one.kind in ("good", "bad"):
            shown = "none" if one.score is None else f"{one.score:.4g}"
            why = "has no score" if one.kind == "good" else "scores as high as a good one"
            yield f"tests.{int(one.row) - 1}", f"the {one.kind} completion {one.completion!r} {why}: {shown}"


def find_own_code(recipe: Recipe) -> None:
    """Let the recipe's own modules be imported."""
    sys.path.extend(str(folder) for folder in recipe.folders if str(folder) not in sys.path)


def count_failures(results: Sequence[Scored]) -> int:
    """Return how many tests do not hold."""
    return sum(not result.ok for result in results)
