"""Questions that take a tool: their scripts lead to their answers, and nothing held out is ever shown."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from learning.lookup import bind
from learning.tools import calls as tools
from learning.toy_tasks.almanac import almanac, scripted
from schemas.errors import StepError
from schemas.use import ProblemsUse, TokenizerUse

ROOT = Path(__file__).parents[3]
KINDS = ["product", "weight", "table", "digits"]


def rows_of(split, **more):
    return almanac(size=80, split=split, kinds=KINDS, **more)


def notes(row):
    return json.loads(row["metadata"])


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_script_of_a_question_leads_to_its_answer(split):
    for row in rows_of(split):
        *calls, answer = notes(row)["script"]
        for place, call in enumerate(calls):
            name, _, query = call.partition(": ")
            if name == "python":  # by itself: the sandbox has tests of its own
                output = str(
                    sum(map(int, str(eval(query.removeprefix("print(sum(map(int,str(").removesuffix("))))")))))
                )
            else:
                output = getattr(tools, name)(query, *([] if name == "calculator" else [row]))
            if place + 1 < len(calls):
                assert calls[place + 1].partition(": ")[2].startswith(output.rpartition(" ")[2])
        assert output == answer == row["answer"]


def test_each_kind_has_its_share_and_takes_what_it_says():
    rows = rows_of("train")
    assert [row["family"] for row in rows[:4]] == [f"almanac_{kind}" for kind in KINDS]
    turns = {row["family"]: len(notes(row)["script"]) for row in rows}
    assert turns == {"almanac_product": 2, "almanac_weight": 3, "almanac_table": 2, "almanac_digits": 2}
    documents = [n["documents"] for row in rows if "documents" in (n := notes(row))]
    assert {len(lines) for lines in documents} == {50}


def test_nothing_held_out_is_shown():
    """Neither a question nor a line of an almanac; a weight cannot be known by heart."""
    shown, held = rows_of("train", seed=1), rows_of("test", seed=1)
    texts = [{row["prompt"][0]["content"] for row in rows} for rows in (shown, held)]
    assert not texts[0] & texts[1]
    lines = [{tuple(n["documents"]) for row in rows if "documents" in (n := notes(row))} for rows in (shown, held)]
    assert not lines[0] & lines[1]
    assert rows_of("train", seed=1) == shown
    with pytest.raises(StepError, match="raise `worlds` or `lines`"):
        almanac(size=1600, split="train", kinds=["weight"], lines=2, worlds=1)


def test_the_teacher_writes_the_turn_that_is_due_and_errs_at_its_rate():
    row = almanac(size=2, split="train", kinds=["weight"])[1]
    first, second, answer = notes(row)["script"]
    rng, so_far = np.random.default_rng(0), []
    for due in (first, second, answer):
        now = row | {"prompt": [*row["prompt"], *so_far]}
        assert scripted(now, rng) == due
        wrong = {scripted(now, rng, error_rate=1.0) for _ in range(20)}
        assert due not in wrong
        assert all(text.partition(": ")[0] == due.partition(": ")[0] for text in wrong if ": " in due)
        so_far += [{"role": "assistant", "content": due}, {"role": "user", "content": "what a tool says"}]
    rate = np.mean([scripted(row, rng, error_rate=0.3) != first for _ in range(2000)])
    assert abs(rate - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 2000)
    with pytest.raises(StepError, match="no script of more than 3 turns"):
        scripted(row | {"prompt": [*row["prompt"], *so_far]}, rng)


def test_an_episode_is_a_lesson_for_every_turn_with_the_real_outputs_of_tools():
    """A question with a weight is three: the search, the product of what was found, and what came of it."""
    of = {"use": "almanac", "size": 6, "split": "train", "kinds": ["weight", "table"]}
    env = {"use": "tools", "tools": ["calculator", "search", "sql"]}
    use = ProblemsUse.model_validate({"use": "turns", "of": of, "by": "scripted", "env": env})
    rows = bind(use)()
    problems = almanac(**{k: v for k, v in of.items() if k != "use"})
    assert [row["id"] for row in rows] == [
        f"{p['id']}.{k}" for p in problems for k in range(3 if p["family"] == "almanac_weight" else 2)
    ]
    first, second, answer = notes(problems[0])["script"]
    document = next(line for line in notes(problems[0])["documents"] if line.startswith(first.removeprefix("search: ")))
    spoken = [[(m["role"], m["content"]) for m in row["prompt"]][1:] for row in rows[:3]]
    calls = [("assistant", first), ("user", document), ("assistant", second), ("user", answer)]
    assert spoken == [calls[:0], calls[:2], calls]
    short = use.model_copy(update={"env": {**env, "max_turns": 2}})
    with pytest.raises(StepError, match="does not end within 2 turns"):
        bind(short)()


def test_an_environment_of_lessons_takes_no_stages_output(tmp_path, monkeypatch):
    (tmp_path / "reading.py").write_text(
        "from schemas.references import ChatRef\n\ndef shelf(query: str, *, data: ChatRef) -> str:\n    return query\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = {"use": "tools", "tools": [{"use": "reading:shelf", "data": "lessons"}]}
    use = {"use": "turns", "of": {"use": "almanac", "size": 1, "split": "train"}, "by": "scripted", "env": env}
    with pytest.raises(StepError, match=r"env.tools.0.data' refers to a stage's output"):
        bind(ProblemsUse.model_validate(use))()


def test_lessons_of_episodes_need_no_torch():
    """Whose import takes seconds: neither the problems and teachers, nor the environment and its tools."""
    code = "import sys, learning.problems.generators, learning.teachers.basic;"
    code += "import learning.environments.tools, learning.tools.calls;"
    code += "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lessons_in_a_context_show_what_the_policy_shows_and_number_the_turns():
    context = {"use": "memory", "ask": "{question}|{memory}|{observation}", "text": "{question}|{memory}"}
    env = {"use": "tools", "tools": ["search"], "longest": 40, "context": context}
    of = {"use": "atlas_questions", "size": 3, "split": "train", "rounds": 1, "seed": 3, "memories": True}
    use = ProblemsUse.model_validate({"use": "turns", "of": of, "by": "scripted", "env": env})
    rows = [row for row in bind(use)() if notes(row)["hops"] == 2][:5]
    question, (first, value) = rows[0]["prompt"][0]["content"], notes(rows[0])["trail"]
    found = [line for line in notes(rows[0])["documents"] if first in line.split() or value in line.split()]
    shown = [row["prompt"][0]["content"].split("|") for row in rows]
    assert [len(row["prompt"]) for row in rows] == [1] * 5
    assert [parts[1:-1] + parts[-1:] for parts in shown[::2]] == [[question], [f"1 {first}"], [f"2 {value}"]]
    assert [parts[1] for parts in shown[1::2]] == ["", f"1 {first}"]
    assert {parts[2] for parts in shown[1::2]} <= set(found)
    assert [(row["id"].rpartition(".")[2], notes(row)["turn"]) for row in rows] == [(str(k), k) for k in range(5)]
    assert [(notes(row)["asks"], notes(row)["actions"]) for row in rows] == [
        *(("action", 0), ("memory", 1), ("action", 1), ("memory", 2), ("action", 2))
    ]


def make_summaries(budget, limit, **more):
    context = {"use": "summary", "budget": budget, "limit": limit, "ask": "sum", "text": "{question} {memory}"}
    env = {"use": "tools", "tools": ["search"], "longest": 40, "context": context}
    of = {"use": "atlas_questions", "size": 20, "split": "train", "rounds": 2, "seed": 3, "memories": True}
    return bind(ProblemsUse.model_validate({"use": "turns", "of": of, "by": "scripted", "env": env, **more}))()


def test_lessons_with_summaries_count_the_tokens_of_the_models_tokenizer():
    """A character is a token: the summary is asked for by the first context that has the budget."""
    tokenizer = bind(TokenizerUse.model_validate("characters"))()
    rows = make_summaries(80, None, tokenizer="characters")
    lengths = {}
    for row, after in pairwise(rows):
        if notes(row)["asks"] == "action" and after["id"].rpartition(".")[0] == row["id"].rpartition(".")[0]:
            call = notes(row)["script"][notes(row)["actions"]]
            ids = tokenizer.apply_chat_template(
                [*row["prompt"], {"role": "assistant", "content": call}], return_dict=False
            )
            lengths.setdefault(notes(after)["asks"], []).append(len(ids))
    assert max(lengths["action"]) < 80 <= min(lengths["memory"])
    assert len(lengths["memory"]) > 5
    for row, after in pairwise(rows):
        if notes(row)["asks"] == "memory":
            question = row["prompt"][0]["content"].split(" ")
            known = notes(row)["memories"][notes(row)["actions"] - 1]
            assert after["prompt"][0]["content"].endswith(f"? {known}")
            assert (row["prompt"][-1]["content"], len(after["prompt"])) == ("sum", 1)
            assert question[0] == after["prompt"][0]["content"].split(" ")[0]


def test_lessons_with_summaries_need_a_tokenizer_and_enough_summaries():
    with pytest.raises(StepError, match="context summary counts tokens; give `tokenizer`"):
        make_summaries(80, None)
    with pytest.raises(StepError, match=r"context summary ends the episode of .*, before the teacher has"):
        make_summaries(40, 0, tokenizer="characters")
