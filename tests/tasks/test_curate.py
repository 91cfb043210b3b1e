import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from learning.data.rows import read_rows, write_rows
from schemas.errors import StepError
from schemas.package import ROOT
from schemas.stages.curate import Curate
from tasks.context import Context
from tasks.curate import run


def prompt_row(name, text, **more):
    prompt = [{"role": "user", "content": text}]
    return {"id": name, "prompt": prompt, "answer": "1", "family": "sum", "metadata": "{}", **more}


def chat_row(name, text, completion, role="assistant"):
    return prompt_row(name, text, completion=[{"role": role, "content": completion}])


@pytest.fixture
def curate(tmp_path):
    def curated(rows, artifact_type="prompts", evaluation=None, again="", **settings):
        inputs = {"data": tmp_path / "data"}
        inputs["data"].mkdir(exist_ok=True)
        write_rows(inputs["data"], artifact_type, rows)
        if evaluation is not None:
            inputs["decontaminate.against_prompts.0"] = tmp_path / "evaluation"
            inputs["decontaminate.against_prompts.0"].mkdir(exist_ok=True)
            write_rows(inputs["decontaminate.against_prompts.0"], "prompts", evaluation)
            settings["decontaminate"] = {"against_prompts": ["held_out"], **settings.get("decontaminate", {})}
        folder = tmp_path / f"step{again}"
        folder.mkdir()
        context = Context(inputs, folder, tmp_path / "checkpoints", seed=0)
        result = run(Curate(kind="curate", data="rows", **settings), context)
        dropped = pq.read_table(folder / "outputs/report/dropped.parquet").to_pylist()
        kept = read_rows(folder / "outputs/data", artifact_type)
        return result, [r["id"] for r in kept], {r["id"]: (r["reason"], r["detail"]) for r in dropped}, folder

    return curated


def test_a_planted_evaluation_problem_is_found_dropped_and_reported_by_id(curate):
    problem = "A train leaves the old station at nine and travels forty miles an hour; when does it reach the sea?"
    evaluation = [prompt_row("eval-0", "Something else altogether, which nobody asks."), prompt_row("eval-7", problem)]
    rows = [chat_row(f"row-{i}", f"How much is {i} plus {i}?", f"It is {2 * i}.") for i in range(40)]
    rows.insert(17, chat_row("planted", f"Solve this.\n{problem.upper().replace(';', ' -')} Think.", "At noon."))
    rows.insert(30, chat_row("leaked", "Tell me a riddle.", f"Here is one: {problem}"))
    result, kept, dropped, folder = curate(rows, "chat", evaluation)
    assert kept == [f"row-{i}" for i in range(40)]
    assert dropped["planted"] == ("contaminated", "against_prompts.0(sum): problem eval-7, overlap 1.00")
    assert dropped["leaked"] == ("contaminated", "against_prompts.0(sum): problem eval-7, overlap 1.00")
    assert result.metrics["dropped.contaminated"] == 2
    report = json.loads((folder / "outputs/report/report.json").read_text())
    assert report["evaluations"] == [{"name": "against_prompts.0(sum)", "problems": 2, "rows_dropped": 2}]
    assert "eval-7" in (folder / "outputs/report/report.md").read_text()


def test_short_problems_match_whole_and_never_as_a_part(curate):
    rows = [
        "12 + 7 - 3 =",
        "12+7−3=",
        "12 + 7 + 3 =",
        "2 + 12 + 7 - 3 =",
        "12 + 7 - 3 = 16",
        "112 + 7 - 3 =",
        "12 + 7 -",
    ]
    rows = [prompt_row(text, text) for text in rows]
    _, kept, dropped, _ = curate(rows, evaluation=[prompt_row("e", "12 + 7 - 3 =")])
    assert list(dropped) == ["12 + 7 - 3 =", "12+7−3="]
    assert len(kept) == 5


def test_a_completion_that_equals_a_short_problem_is_no_contamination(curate):
    rows = [chat_row("a", "nus", "sun"), chat_row("b", "sun", "nus")]
    _, kept, dropped, _ = curate(rows, "chat", evaluation=[prompt_row("e", "sun")])
    assert (kept, list(dropped)) == (["a"], ["b"])


def test_rows_that_share_only_the_template_of_an_evaluation_stay(curate):
    template = "Spell this word backward, letter by letter, as in the example sun -> nus: {}"
    evaluation = [prompt_row(f"e{w}", template.format(w)) for w in ("cat", "dog", "hen", "cow", "pig")]
    rows = [prompt_row(w, template.format(w)) for w in ("ant", "bee", "cow", "elk")]
    _, kept, dropped, _ = curate(rows, evaluation=evaluation)
    assert kept == ["ant", "bee", "elk"]
    assert dropped["cow"][1] == "against_prompts.0(sum): problem ecow, overlap 1.00"


def test_overlap_is_the_share_of_the_problems_distinct_ngrams(curate):
    words = [f"w{i}" for i in range(11)]  # 4 distinct 8-grams
    evaluation = [prompt_row("e", " ".join(words))]
    rows = [prompt_row("two", " ".join(words[:9])), prompt_row("three", " ".join(words[:10]))]
    _, kept, dropped, _ = curate(rows, evaluation=evaluation)
    assert kept == ["two"]
    assert dropped["three"] == ("contaminated", "against_prompts.0(sum): problem e, overlap 0.75")


def test_generated_evaluations_are_made_again_from_their_slots(curate):
    use = {"use": "reasoning_gym", "family": "chain_sum", "size": 20, "seed": 3, "split": "test"}
    problems = pytest.importorskip("learning.problems.generators").reasoning_gym(
        **{k: v for k, v in use.items() if k != "use"}
    )
    rows = [prompt_row("other", "nothing of the sort"), problems[4]]
    _, kept, dropped, _ = curate(rows, decontaminate={"against": [use]})
    assert kept == ["other"]
    assert f"problem {problems[4]['id']}, overlap 1.00" in dropped[problems[4]["id"]][1]


def test_problems_of_lm_eval_are_read_from_its_task_files(curate, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    use = {"use": "lm_eval", "tasks": ["sums"], "include_path": str(ROOT / "data/lm_eval")}
    rows = [prompt_row("other", "nothing of the sort"), prompt_row("asked", "4 + 6 =")]
    _, kept, dropped, _ = curate(rows, decontaminate={"against": [use]})
    assert kept == ["other"]
    assert "problem sums/0" in dropped["asked"][1]


def test_too_much_contamination_fails_and_says_what_to_do(curate):
    rows = [prompt_row("a", "x y"), prompt_row("b", "x z"), prompt_row("c", "z z")]
    with pytest.raises(
        StepError, match=r"1 of 3 rows contain evaluation problems, more than max_dropped = 0\.2 .first: b"
    ):
        curate(rows, evaluation=[prompt_row("e", "x z")], decontaminate={"max_dropped": 0.2})


def test_every_malformed_row_is_dropped_with_its_reason(curate):
    rows = [
        chat_row("good", "q", "a"),
        chat_row("blank", " \n", "a"),
        chat_row("mute", "q", "\u00a0 "),
        chat_row("stranger", "q", "a", role="robot"),
        chat_row("parrot", "q", "a", role="user"),
        {**chat_row("none", "q", "a"), "completion": None},
        {**chat_row("hollow", "q", "a"), "completion": []},
        {**chat_row("ended", "q", "a"), "prompt": [{"role": "assistant", "content": "q"}]},
        {**chat_row("null", "q", "a"), "completion": [{"role": "assistant", "content": None}]},
    ]
    _, kept, dropped, _ = curate(rows, "chat")
    assert kept == ["good"]
    assert {name: detail for name, (_, detail) in dropped.items()} == {
        "blank": "empty prompt",
        "mute": "empty completion",
        "stranger": "roles of completion",
        "parrot": "roles of completion",
        "none": "empty completion",
        "hollow": "empty completion",
        "ended": "roles of the prompt",
        "null": "empty completion",
    }


def test_pairs_keep_their_type_and_lose_equal_pairs(curate):
    def pair(name, chosen, rejected):
        sides = {"chosen": chosen, "rejected": rejected}
        replies = {k: [{"role": "assistant", "content": v}] for k, v in sides.items()}
        return prompt_row(name, "q", **replies, margin=0.5)

    result, kept, dropped, folder = curate(
        [pair("a", "yes", "no"), pair("b", "yes", "yes "), pair("c", "no", "yes"), pair("d", "yes", "no")],
        "preference_pairs",
    )
    assert kept == ["a", "c"]
    assert dropped == {"b": ("malformed", "chosen equals rejected"), "d": ("exact_duplicate", "of a")}
    assert result.details["type"] == "preference_pairs"
    assert read_rows(folder / "outputs/data", "preference_pairs")[0]["margin"] == 0.5


def test_exact_duplicates_are_equal_up_to_white_space_and_composition(curate):
    texts = {"a": "caf\u00e9  au lait", "b": "cafe\u0301 au\nlait", "c": "Caf\u00e9 au lait", "d": "café au lait!"}
    _, kept, dropped, _ = curate([prompt_row(k, v) for k, v in texts.items()])
    assert kept == ["a", "c", "d"]
    assert dropped["b"] == ("exact_duplicate", "of a")


def test_only_duplicates_leave_the_first(curate):
    _, kept, _, _ = curate([prompt_row(str(i), "the same") for i in range(50)])
    assert kept == ["0"]


def test_near_duplicates_go_and_the_threshold_decides(curate):
    text = "the quick brown fox jumps over the lazy dog while the band plays on and on until the early morning " * 2
    rows = [prompt_row("a", text), prompt_row("b", text.replace("early", "pearly")), prompt_row("c", text[::-1])]
    _, kept, dropped, _ = curate(rows, fuzzy_dedup={"threshold": 0.8})
    assert kept == ["a", "c"]
    assert dropped["b"][0] == "near_duplicate"
    _, kept, _, _ = curate(rows, again="2", fuzzy_dedup={"threshold": 1.0})
    assert kept == ["a", "b", "c"]


def test_lengths_count_prompt_and_completion(curate):
    rows = [chat_row("ok", "12345", "1234"), chat_row("long", "12345", "123456"), chat_row("short", "1", "2")]
    _, kept, dropped, _ = curate(rows, "chat", min_length=4, max_length=10)
    assert kept == ["ok"]  # 5 + newline + 4
    assert dropped == {"long": ("length", "12 characters"), "short": ("length", "3 characters")}


def test_filters_name_themselves(curate):
    rows = [chat_row("a", "q", "one two three four"), chat_row("b", "q", "la la la la la la la la")]
    _, kept, dropped, _ = curate(rows, "chat", filters=["printable", {"use": "repetition", "max_share": 0.3}])
    assert kept == ["a"]
    assert dropped["b"] == ("quality", "repetition {'max_share': 0.3}")


def test_limit_draws_with_the_seed_and_keeps_the_order(curate):
    result, kept, dropped, _ = curate([prompt_row(f"{i:03}", f"text {i}") for i in range(100)], limit=10)
    assert len(kept) == 10
    assert kept == sorted(kept) != [f"{i:03}" for i in range(10)]
    assert result.metrics == {"rows": 100, "kept": 10, "dropped": 90, "dropped.limit": 90} | {
        f"dropped.{r}": 0
        for r in (
            *("malformed", "length", "exact_duplicate", "near_duplicate", "quality", "similar", "contaminated"),
            *("score", "diversity"),
        )
    }
    assert set(dropped.values()) == {("limit", "10 of 100 drawn")}


def test_nothing_left_is_an_error(curate):
    with pytest.raises(StepError, match=r"none of 1 rows is left \(malformed 1\)"):
        curate([prompt_row("a", "")])


def test_rows_of_no_known_type_are_refused(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(pq.read_table(_plain(tmp_path)).select(["id"]), folder / "rows.parquet")
    context = Context({"data": folder}, tmp_path, tmp_path, seed=0)
    with pytest.raises(StepError, match="columns id are not those of known rows"):
        run(Curate(kind="curate", data="rows"), context)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    table = pq.read_table(_plain(tmp_path))
    offsets = pa.array([0, 3], pa.int32()).buffers()[1]
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"a\xff\xfe")])
    pq.write_table(table.set_column(2, "answer", broken), folder / "rows.parquet")
    with pytest.raises(StepError, match="damaged rows, or text that is not UTF-8"):
        run(Curate(kind="curate", data="rows"), Context({"data": folder}, tmp_path, tmp_path, seed=0))


def _plain(tmp_path: Path) -> Path:
    write_rows(tmp_path, "prompts", [prompt_row("a", "b")])
    return tmp_path / "rows.parquet"


def test_the_same_rows_give_the_same_bytes(curate):
    words = ["sun", "moon", "sea", "été", "漢字", "🙂", "x", "\u0000"]
    rows = [prompt_row(f"r{i}", " ".join(words[(i * k) % 8] for k in range(1, 9))) for i in range(200)]
    settings = {"evaluation": rows[5:6], "fuzzy_dedup": {"threshold": 0.7}, "limit": 5}
    folders = [curate(rows, again=again, **settings)[3] for again in ("1", "2")]
    files = sorted(p.relative_to(folders[0]) for p in folders[0].rglob("*") if p.is_file())
    assert [str(f) for f in files] == [
        "outputs/data/rows.parquet",
        "outputs/report/dropped.parquet",
        "outputs/report/report.json",
        "outputs/report/report.md",
    ]
    assert all((folders[0] / f).read_bytes() == (folders[1] / f).read_bytes() for f in files)
