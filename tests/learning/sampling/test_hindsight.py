"""Dialogues that are rewritten at a turn and said to their end by two models."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from learning.data.rows import read_metadata, read_rows, write_rows
from learning.samples.engine_protocol import Sampling
from learning.sampling import hindsight
from schemas.errors import StepError

SAID = ("hi", "one", "no", "two", "no", "bye")
NAME = "learning.sampling.hindsight:regenerate"


def make_talk(name, said=SAID):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    row = {"id": name, "answer": "a", "family": "f", "metadata": json.dumps({"rewards": [0, 0, 0], "goal": "g"})}
    return row | {"prompt": messages[:-1], "completion": messages[-1:]}


def make_rewrite(source, text):
    row = {"id": source, "answer": None, "family": "f", "metadata": json.dumps({"source": source})}
    asked = [{"role": "user", "content": "which?"}]
    return row | {"prompt": asked, "completion": [{"role": "assistant", "content": text}]}


WAYS = Sampling()


@dataclass
class Speaker:
    """A model that says who it is, and after how many messages."""

    name: str
    sampling: Sampling = WAYS
    seed: int = 0
    step: int = 0
    room: int = 99
    ends: int = 99

    @property
    def policy(self):
        return SimpleNamespace(max_length=self.room + self.sampling.max_new_tokens)

    def encode(self, messages):
        return list(range(len(messages)))

    def sample(self, requests):
        seen = [request.row["prompt"] for request in requests]
        assert all(messages[-1]["role"] == "user" for messages in seen)
        return [
            SimpleNamespace(text=f" {self.name}{len(m)} ", finish="stop" if len(m) < self.ends else "length")
            for m in seen
        ]


@pytest.fixture
def run(tmp_path, monkeypatch):
    def run(rewrites, *, partner=None, agent=None, **options):
        models = {tmp_path / "partner": partner or Speaker("p"), tmp_path / "agent": agent or Speaker("a")}
        monkeypatch.setattr(hindsight, "guest", lambda folder: models[folder])
        for port, rows in (("dialogues", [make_talk("t")]), ("rewrites", rewrites)):
            (tmp_path / port).mkdir(exist_ok=True)
            write_rows(tmp_path / port, "chat", rows)
        (tmp_path / "made").mkdir(exist_ok=True)
        context = SimpleNamespace(input=lambda port: tmp_path / port, output=lambda port: tmp_path / "made", seed=3)
        metrics = hindsight.regenerate(context, **options)
        return read_rows(tmp_path / "made", "chat"), metrics

    return run


def list_texts(row):
    return [message["content"] for message in [*row["prompt"], *row["completion"]]]


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        ("1: other", ["hi", "other", "p1", "a3", "p3", "a5"]),
        ("2: other", ["hi", "one", "no", "other", "p3", "a5"]),
        ("turn 3: other", ["hi", "one", "no", "two", "no", "other"]),
    ],
)
def test_everything_before_the_turn_is_kept_and_everything_after_it_is_said_by_the_models(run, rewrite, said):
    (row,), metrics = run([make_rewrite("t", rewrite)])
    assert list_texts(row) == said
    assert [m["role"] for m in [*row["prompt"], *row["completion"]]] == ["user", "assistant"] * 3
    turn = said.index("other") // 2 + 1
    assert read_metadata(row) == {"goal": "g", "source": "t", "hindsight_turn": turn}
    assert (row["answer"], row["family"]) == ("a", "f")
    assert metrics == {"regenerated": 1, "unread": 0, "same": 0, "too_long": 0, "cut": 0}


def test_rewrites_that_say_nothing_new_are_counted_and_left_out(run):
    texts = ["2: new", "2: two", "none", "0: new", "4: new", "99999999: new", "2:  "]
    rows, metrics = run([make_rewrite("t", text) for text in texts])
    assert len(rows) == 1
    assert metrics == {"regenerated": 1, "same": 1, "unread": 5, "too_long": 0, "cut": 0}


def test_several_rewrites_of_a_dialogue_are_several_rows(run):
    rows, _ = run([make_rewrite("t", "1: x"), make_rewrite("t", "2: x")])
    assert len({row["id"] for row in rows}) == 2


def test_a_pattern_without_a_number_rewrites_the_first_turn(run):
    (row,), _ = run([make_rewrite("t", "other")], pattern="()(.+)")
    assert list_texts(row)[1] == "other"


@pytest.mark.parametrize(("who", "said"), [("partner", ["hi", "x"]), ("agent", ["hi", "x", "p1", "a3"])])
def test_a_dialogue_ends_before_a_turn_that_does_not_end(run, who, said):
    """The agent's turns after 5 messages, or the partner's first one."""
    ends = {"partner": Speaker("p", ends=1), "agent": Speaker("a", ends=5)}
    (row,), metrics = run([make_rewrite("t", "1: x")], **{who: ends[who]})
    assert list_texts(row) == said
    assert metrics["cut"] == 1


def test_a_dialogue_without_room_for_another_turn_is_left_out(run):
    with pytest.raises(StepError, match=r"none of 1 rewrites led to a dialogue .*'too_long': 1"):
        run([make_rewrite("t", "1: x")], agent=Speaker("a", room=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"pattern": "(.+)"}, "needs two groups"), ({"pattern": "(("}, "invalid pattern")],
)
def test_a_pattern_that_finds_no_turn_is_refused(run, options, message):
    with pytest.raises(StepError, match=message):
        run([make_rewrite("t", "1: x")], **options)


def test_a_rewrite_of_no_dialogue_is_refused(run):
    with pytest.raises(
        StepError, match=r"rewrite s: its metadata have no `source` that is the id of a dialogue \('s'\)"
    ):
        run([make_rewrite("s", "1: x")])


def test_the_models_sample_with_the_options_and_streams_of_their_own(run, monkeypatch):
    made = []
    monkeypatch.setattr(hindsight, "replace", lambda one, **how: made.append(how) or replace(one, **how))
    run([make_rewrite("t", "1: x")], temperature=0.5, max_completion_length=7)
    assert [how["sampling"] for how in made] == [Sampling(0.5, 7)] * 2
    assert len({(how["seed"], how["step"]) for how in made}) == 2
