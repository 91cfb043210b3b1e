"""Whole conversations: played, kept by what they earn, told in a style, and shown as worked examples."""

from types import SimpleNamespace

import pytest

from learning.curation.row_filters import succeeded
from learning.data.rows import read_rows, write_rows
from learning.data.thought_lines import retell_trace, split_lines
from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from learning.problems.traces import demonstrated, play_traces, retell
from schemas.errors import StepError
from schemas.use import EnvUse, FunctionUse

GUESS = {"use": "guess"}


def guess_row(name, answer, family="guess"):
    prompt = [{"role": "user", "content": f"guess {name}"}]
    return {"id": name, "prompt": prompt, "answer": answer, "family": family, "metadata": None}


def said(*texts):
    return [{"role": ("assistant", "user")[place % 2], "content": text} for place, text in enumerate(texts)]


@pytest.fixture
def context(tmp_path):
    def place(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return tmp_path / name

    return SimpleNamespace(input=place, output=place, seed=0)


def test_a_turn_is_read_line_by_line():
    turn = "hm\nThought: one\ntwo\n  Action:  open box \nObservation: x\nAnswer: a: b"
    assert split_lines(turn) == [
        ("", "hm"),
        ("Thought", "one\ntwo"),
        ("Action", "open box"),
        ("Observation", "x"),
        ("Answer", "a: b"),
    ]
    assert split_lines("") == split_lines(" \n") == []
    assert split_lines("my Action: go") == [("", "my Action: go")]


def test_turns_without_a_line_of_the_style_go_with_their_answers():
    trace = said("Thought: a", "", "Action: b", "seen", "Thought: c\nAnswer: d")
    assert retell_trace(trace, "act_only") == said("Action: b", "seen", "Answer: d")
    assert retell_trace(trace, "reason_only") == said("Thought: a\nThought: c\nAnswer: d")
    assert retell_trace(trace[:4], "reason_only") == []
    assert retell_trace(trace, "react") == trace


def test_traces_are_kept_by_what_they_earn(context):
    write_rows(context.output("prompts"), "prompts", [guess_row("a", "3"), guess_row("b", "5")])
    use = FunctionUse.model_validate(
        {
            "use": "learning.problems.traces:play_traces",
            "by": {"use": "one_of", "texts": ["3"]},
            "env": {**GUESS, "max_turns": 2},
        }
    )
    assert bind(use).function is play_traces
    assert bind(use)(context) == {"traces": 2, "solved": 0.5}
    first, second = read_rows(context.input("traces"), "chat")
    assert first["completion"] == said("3")
    assert [message["role"] for message in second["completion"]] == ["assistant", "user", "assistant"]
    env = EnvUse.model_validate(GUESS)
    assert [succeeded(row, env=env) for row in (first, second)] == [True, False]
    assert succeeded(second, env=env, at_least=0.0)


def test_examples_are_of_the_family_and_about_other_questions(context):
    rows = [guess_row("a", "3"), guess_row("b", "5", "other"), guess_row("c", "4")]
    traces = [row | {"completion": said(f"Thought: t{row['id']}\nAnswer: {row['answer']}")} for row in rows]
    write_rows(context.output("traces"), "chat", traces)
    write_rows(context.output("asked"), "prompts", rows[:1])
    folders = {"data": context.input("asked"), "traces": context.input("traces")}
    (shown,) = demonstrated(**folders, k=1)
    text = "Question: guess c\nThought: tc\nAnswer: 4\n\nQuestion: guess a"
    assert shown["prompt"] == [{"role": "user", "content": text}]
    (shown,) = demonstrated(**folders, k=2, style="act_only", of_family=False)
    text = "Question: guess b\nAnswer: 5\n\nQuestion: guess c\nAnswer: 4\n\nQuestion: guess a"
    assert shown["prompt"][0]["content"] == text
    with pytest.raises(StepError, match="row a: there are 1 traces of family guess to show in style react, not 2"):
        demonstrated(**folders)
    with pytest.raises(StepError, match="give either"):
        demonstrated(traces=folders["traces"])


def test_traces_without_lines_cannot_be_told(context):
    write_rows(context.output("traces"), "chat", [guess_row("a", "3") | {"completion": said("3")}])
    with pytest.raises(StepError, match="no trace has lines of the style react"):
        retell(context, style="react")


def test_families_have_environments_of_their_own():
    use = EnvUse.model_validate({"use": "routed", "families": {"guess": GUESS, "page": {"use": "pages"}}})
    world = build_environment(use, {})
    assert world.begin(guess_row("a", "3"), 0).step("3").done
    paged = guess_row("a", "zed", "page") | {"metadata": '{"pages": {"bam": ["bam is old"]}}'}
    assert world.begin(paged, 0).step("search bam").observation == "bam is old"
    with pytest.raises(StepError, match="row a is of family other; `families` has guess, page"):
        world.begin(guess_row("a", "3", "other"), 0)


@pytest.mark.parametrize("metadata", [None, "{}", '{"pages": []}', '{"pages": {"a": []}}', '{"pages": {"a": [1]}}'])
def test_pages_need_sentences(metadata):
    world = build_environment(EnvUse.model_validate({"use": "pages"}), {})
    with pytest.raises(StepError, match="row a: its metadata need `pages`"):
        world.begin(guess_row("a", "3") | {"metadata": metadata}, 0)


def test_a_reader_goes_on_where_it_was_saved():
    row = guess_row("a", "3") | {"metadata": '{"pages": {"bam": ["bam one", "bam two", "bam three"]}}'}
    world = build_environment(EnvUse.model_validate({"use": "react", "of": {"use": "pages"}}), {})
    first, second = world.begin(row, 0), world.begin(row, 0)
    first.step("Action: search bam")
    first.step("Action: lookup bam")
    second.restore(first.save())
    assert (second.step("Action: lookup bam").observation, second.state_name) == ("bam two", "bam: bam 2")
    tools = {"use": "react", "of": {"use": "tools", "tools": ["calculator"]}}
    world = build_environment(EnvUse.model_validate(tools), {})
    first, second = world.begin(row, 0), world.begin(row, 0)
    first.step("Action: calculator: 2+2")
    second.restore(first.save())
    assert second.step("Action: calculator: 2+3") == first.step("Action: calculator: 2+3")
