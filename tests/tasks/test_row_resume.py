"""A killed synthesis or evaluation goes on at the row where it stopped: nothing is lost, nothing is sampled twice."""

import json
from collections import Counter

import pytest

from learning.data.row_journal import RowJournal, make_row_key
from learning.parallel.actors import Threads
from schemas.stages.evaluate import Evaluate
from schemas.stages.synthesize import Synthesize
from tasks import evaluate, synthesize
from tasks.context import Context

SUMS = {
    "use": "reasoning_gym",
    "family": "chain_sum",
    "split": "train",
    "size": 30,
    "style": "short",
    "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
ENGINE = """
import threading

from learning.generation.engines.torch import Engine as Torch
from learning.generation.services.row_streams import UNDER_WAY

ASKED = []
LEFT = {"requests": None}


class Killed(BaseException):
    pass


class Stepwise(Torch):
    def flight(self, sampling):
        flight = super().flight(sampling)
        add, ended = flight.add, flight.step

        def counted(ticket, request):
            ASKED.append((request.seed, request.n))
            add(ticket, request)

        def step():
            made = ended()
            if LEFT["requests"] is not None and made:
                LEFT["requests"] -= len(made)
                if LEFT["requests"] <= 0:
                    raise Killed
            return made

        flight.add, flight.step = counted, step
        return flight


class Batches:
    def __init__(self, policy):
        self.engine, self.calls = Torch(policy), 0

    def generate(self, requests, sampling):
        if LEFT["requests"] is not None:
            LEFT["requests"] -= sum(r.n for r in requests)
            if LEFT["requests"] <= 0:
                raise Killed
        ASKED.extend((request.seed, request.n) for request in requests)
        return self.engine.generate(requests, sampling)

    def sync(self, version):
        pass
"""


@pytest.fixture(params=["Stepwise", "Batches"])
def engine(request, tmp_path, monkeypatch):
    """An engine that counts what it is asked and can be made to die; its name in a recipe, and its module."""
    import importlib
    import sys

    (tmp_path / "counted.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("counted", None)
    module = importlib.import_module("counted")
    yield f"counted:{request.param}", module
    del sys.modules["counted"]


def at(tmp_path, name, attempt, inputs, actors=None):
    folder, checkpoints = tmp_path / f"{name}-{attempt}", tmp_path / f"{name}-checkpoints"
    folder.mkdir()
    checkpoints.mkdir(exist_ok=True)
    spent = []
    context = Context(
        inputs,
        folder,
        checkpoints,
        seed=3,
        actors=actors,
        on_progress=lambda event: spent.append(event.get("spent", 0)),
    )
    return context, spent


def files(context):
    outputs = context.folder / "outputs"
    return {str(p.relative_to(outputs)): p.read_bytes() for p in sorted(outputs.rglob("*")) if p.is_file()}


def stage_of(kind, engine):
    common = {"kind": kind, "model": "m", "num_generations": 3, "max_completion_length": 8, "temperature": 1.0}
    if kind == "evaluate":
        return Evaluate.model_validate({**common, "tasks": [SUMS], "engine": engine, "num_bootstrap": 100})
    return Synthesize.model_validate({**common, "problems": [SUMS], "engine": engine, "min_reward": 0.0})


RUN = {"synthesize": synthesize.run, "evaluate": evaluate.run}


@pytest.mark.parametrize("kind", ["synthesize", "evaluate"])
def test_what_was_recorded_is_not_sampled_again(kind, engine, tiny_policy_folder, tmp_path, monkeypatch):
    name, module = engine
    monkeypatch.setattr("learning.generation.services.row_streams.UNDER_WAY", 12)
    monkeypatch.setattr("learning.generation.services.row_streams.PER_CALL", 12)
    stage, inputs = stage_of(kind, name), {"model": tiny_policy_folder}
    whole, spent = at(tmp_path, "whole", 0, inputs)
    want = RUN[kind](stage, whole)
    asked, module.ASKED[:] = list(module.ASKED), []
    assert len(asked) == 30
    tokens = sum(spent)
    recorded, total = [0], 0
    for attempt, limit in enumerate((20, 37)):
        module.LEFT["requests"] = limit
        context, spent = at(tmp_path, "broken", attempt, inputs)
        with pytest.raises(module.Killed):
            RUN[kind](stage, context)
        total += sum(spent)
        (journal,) = context.checkpoints.glob("sampled*.jsonl")
        recorded.append(len(journal.read_text().splitlines()))
    assert 0 < recorded[1] < recorded[2] < 30
    module.LEFT["requests"], module.ASKED[:] = None, []
    last, spent = at(tmp_path, "broken", 2, inputs)
    assert RUN[kind](stage, last) == want
    assert files(last) == files(whole)
    assert len(module.ASKED) == 30 - recorded[2]
    assert set(module.ASKED) < set(asked)
    # Tokens were told once for every row that was recorded.
    assert total + sum(spent) == tokens
    assert (last.spending.total().tokens, last.spending.earlier.tokens) == (tokens, total)


@pytest.mark.parametrize("kind", ["synthesize", "evaluate"])
def test_it_may_go_on_with_another_number_of_replicas(kind, tiny_policy_folder, tmp_path):
    stage, inputs = stage_of(kind, "torch"), {"model": tiny_policy_folder}
    whole, spent = at(tmp_path, "whole", 0, inputs)
    want, tokens = RUN[kind](stage, whole), sum(spent)

    class Stopped(Exception):
        pass

    def stop(event):
        if event.get("spent"):
            raise Stopped

    context, _ = at(tmp_path, "broken", 0, inputs, Threads({"rollout": 2}))
    with pytest.raises(Stopped):
        RUN[kind](
            stage, Context(inputs, context.folder, context.checkpoints, 3, on_progress=stop, actors=context.actors)
        )
    context.actors.close()
    (journal,) = context.checkpoints.glob("sampled*.jsonl")
    before = journal.read_text()
    assert 0 < len(before.splitlines()) <= 30
    for attempt, size in enumerate((1, 2), 1):
        journal.write_text(before)
        actors = Threads({"rollout": size})
        last, spent = at(tmp_path, "broken", attempt, inputs, actors)
        assert RUN[kind](stage, last) == want
        assert files(last) == files(whole)
        assert sum(spent) < tokens
        # The workers are free: nothing of them is alive.
        assert actors.start("rollout", list)
        actors.close()


def test_a_journal_keeps_what_is_whole(tmp_path):
    file = tmp_path / "new" / "rows.jsonl"
    long = "x" * 40_000
    with RowJournal(file) as journal:
        journal.add({"a": [1, "é\n"], "b": {"c": None}})
        journal.add({"long": long}, {"long": 7})
        assert journal.tokens == 0
        assert ("a" in journal, "z" in journal, len(journal), journal.resumed) == (True, False, 3, 0)
    with file.open("ab") as lines:
        lines.write(b'["cut", {"off')
    with RowJournal(file) as journal:
        assert (len(journal), journal.resumed, journal.tokens) == (3, 3, 7)
        assert (journal["a"], journal["b"], journal["long"]) == ([1, "é\n"], {"c": None}, long)
        with pytest.raises(KeyError):
            journal["cut"]
        journal.add({"cut": 5})
    with RowJournal(file) as journal:
        assert journal["cut"] == 5
    whole = file.read_bytes()
    for size in (0, 1, 5, *range(len(whole) - 20, len(whole)), *range(20, len(whole), 4001)):
        file.write_bytes(whole[:size])
        with RowJournal(file) as journal:
            assert len(journal) == whole[:size].count(b"\n")
    assert [json.loads(line)[0] for line in whole.splitlines()] == ["a", "b", "long", "cut"]


def test_a_name_is_of_the_row_and_its_prompt():
    row = {"id": "1", "prompt": [{"role": "user", "content": "x"}], "answer": "y"}
    assert make_row_key(row) == make_row_key(row | {"answer": "z"})
    names = [
        make_row_key(row),
        make_row_key(row | {"id": "2"}),
        make_row_key(row | {"prompt": [{"role": "user", "content": "y"}]}),
    ]
    assert Counter(names).most_common()[0][1] == 1
