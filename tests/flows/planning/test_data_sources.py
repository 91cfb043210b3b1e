import os
import re

import pytest

from flows.planning.compile import compile_recipe
from flows.planning.data_sources import describe_sources, find_source_problems, look_at_sources, show_examples
from lineage.layout import Layout
from schemas.errors import RecipeError
from schemas.recipe.load import load_recipe
from tests.tasks.data_stages import line

RECIPE = """name: p
stages:
  base: {kind: init}
  one: {kind: sft, model: base, max_steps: 1, data: %s}
  two: {kind: sft, model: one, max_steps: 2, data: %s}
"""
FILE = "path:chats.jsonl"


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """A checkout that the tests share, so that what is known of the code is computed once."""
    return Layout(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def plan(layout):
    """A plan of two stages that train on what is written in place of `data`."""
    (layout.root / "chats.jsonl").write_text(line("2+2?", "4") + "\n" + line("1+1?", "2") + "\n")

    def make(one=FILE, two=None, text=RECIPE):
        (layout.root / "recipe.yaml").write_text(text % (one, two or one))
        recipe = load_recipe(layout.root / "recipe.yaml")
        if problems := list(find_source_problems(recipe, layout)):
            raise RecipeError(problems)
        return compile_recipe(recipe, layout)

    make.folder, make.layout = layout.root, layout
    return make


def test_a_file_in_place_of_a_stage_is_a_step_that_stages_share(plan):
    made = plan()
    assert [(s.name, s.kind) for s in made.steps] == [
        ("base", "init"),
        ("one-data", "data"),
        ("one", "sft"),
        ("two", "sft"),
    ]
    assert made.step("two").inputs[1].steps == ("one-data",)
    other = plan(two=f"{{from: {FILE}, on_bad_row: drop}}")
    assert [s.name for s in other.steps] == ["base", "one-data", "one", "two-data", "two"]
    whole = plan("{sources: [chats.jsonl]}".replace("chats", "path:chats"))
    assert whole.step("one").key == made.step("one").key


def test_the_key_is_that_of_the_bytes(plan):
    file = plan.folder / "chats.jsonl"
    first = plan().step("one-data").key
    os.utime(file, (1, 1))
    assert plan().step("one-data").key == first
    content = file.read_text()
    file.write_text(content.replace("2+2?", "2+3?"))
    changed = plan().step("one-data").key
    assert changed != first
    file.unlink()
    file.write_text(content)
    assert plan().step("one-data").key == first
    folder = plan.folder / "copy"
    folder.mkdir()
    (folder / "chats.jsonl").write_text(content)
    for other in ("path:copy", "path:copy/*.jsonl", "path:copy/chats.jsonl"):
        assert plan(other).step("one-data").key == first


def test_a_data_set_of_the_hub_is_pinned_by_its_commit(plan, monkeypatch):
    commit = "3" * 40
    monkeypatch.setenv("HF_HUB_CACHE", str(plan.folder / "hub"))
    home = plan.folder / "hub/datasets--lab--chats"
    (home / "refs").mkdir(parents=True)
    (home / "refs/main").write_text(commit)
    files = home / "snapshots" / commit
    files.mkdir(parents=True)
    for name in ("train", "test"):
        (files / f"{name}.jsonl").write_text(line(name, "a") + "\n")
    made = plan("hub:lab/chats", "{from: hub:lab/chats, split: test}")
    assert [step.inputs[0].digest for step in made.steps if step.kind == "data"] == [commit, commit]
    examples = list(show_examples(look_at_sources(made, plan.layout, examples=1)))
    assert ["user: train" in text for text in examples] == [True, False]
    with pytest.raises(RecipeError, match=r"hf download lab/other \(--repo-type dataset for data\)"):
        plan("hub:lab/other")


def test_data_that_dvc_has_and_the_checkout_lacks_is_asked_for(plan):
    (plan.folder / "kept.jsonl.dvc").write_text("outs: []")
    with pytest.raises(RecipeError, match=r"tracked by DVC and not checked out; fetch it: dvc pull .*kept\.jsonl\.dvc"):
        plan("path:kept.jsonl")
    (plan.folder / "rows.dvc").write_text("outs: []")
    with pytest.raises(RecipeError, match=r"not checked out; fetch it: dvc pull .*rows\.dvc"):
        plan("path:./rows/train/a.jsonl")


def test_a_look_shows_format_rows_and_examples(plan):
    seen = look_at_sources(plan(f"{{from: {FILE}, format: messages}}", FILE), plan.layout, examples=1)
    size = (plan.folder / "chats.jsonl").stat().st_size
    described = f"1 file, {size} bytes, 2 rows"
    assert describe_sources(seen) == [
        f"one-data reads {FILE}: messages, {described}",
        f"two-data reads {FILE}: messages (detected), {described}",
    ]
    assert next(show_examples(seen)) == "one-data: chats.jsonl:1\n  prompt user: 2+2?\n  completion assistant: 4"


BAD = {
    "path:none.jsonl": "path:none.jsonl: no such folder or file",
    "'path:*.csv'": r"path:\*\.csv: no file of rows matches",
    "{from: path:chats.jsonl, format: alpaca}": r"chats\.jsonl, row 1: no `instruction`; its columns: messages",
    "{from: path:chats.jsonl, columns: {messages: chat}}": "row 1: no column `chat`, which is to be `messages`",
    "{from: path:other}": "one-data: path:other: .*columns a are those of no format",
}


@pytest.mark.parametrize(("data", "message"), BAD.items(), ids=BAD)
def test_what_cannot_be_read_is_refused_before_the_run(plan, data, message):
    (plan.folder / "other").mkdir(exist_ok=True)
    (plan.folder / "other/a.json").write_text('[{"a": 1}]')
    with pytest.raises(RecipeError, match=message.removeprefix("one-data: ")):
        plan(data)


REFUSED = {
    "{from: path:chats.jsonl, form: alpaca}": "unknown key `form`.*did you mean `format`",
    "{from: path:chats.jsonl, format: alpacca}": "`alpacca` is not one of the words.*did you mean `alpaca`",
    "{from: path:chats.jsonl, format: prompts}": "rows of format prompts cannot become chat",
    "{from: path:chats.jsonl, columns: {prompt: '{a!r}'}}": "must be the name of a column",
    "{from: base}": r"wants prompts or chat or preference_pairs or step_labels or directory, but `base` is policy",
}


@pytest.mark.parametrize(("data", "message"), REFUSED.items(), ids=REFUSED)
def test_what_is_written_wrong_is_refused_at_its_place(plan, data, message):
    with pytest.raises(RecipeError) as refused:
        plan(data)
    text = str(refused.value).replace("\n", " ")
    assert "recipe.yaml:4:" in text
    assert re.search(message, text), text


def test_a_file_of_rows_is_refused_where_no_stage_converts_it(plan):
    with pytest.raises(RecipeError, match=r"recipe\.yaml:4:.* stages\.one\.model: a file of rows cannot be read here"):
        plan("path:own", text=RECIPE.replace("model: base", f"model: {FILE}"))


def test_a_folder_of_own_rows_is_read_in_place(plan):
    (plan.folder / "own").mkdir()
    (plan.folder / "own/rows.parquet").write_bytes(b"")
    assert [s.name for s in plan("path:own").steps] == ["base", "one", "two"]


def test_the_same_name_means_other_rows_in_each_iteration(plan):
    recipe = """name: p
stages:
  base: {kind: init}
  loop:
    repeat:
      max: 2
      first: {tuned: base}
      stages:
        lessons:
          kind: synthesize
          problems: [{use: reasoning_gym, family: spell_backward, split: train, size: 9}]
          teacher: answer
        tuned: {kind: sft, model: previous.tuned, data: [lessons, path:chats.jsonl], max_steps: 1}
"""
    (plan.folder / "recipe.yaml").write_text(recipe)
    loaded = load_recipe(plan.folder / "recipe.yaml")
    ports = {name: [p.steps for p in loaded.ports(name)] for name in loaded.steps if name.endswith("-data")}
    assert ports == {"loop-1-tuned-data": [("loop-1-lessons",), ()], "loop-2-tuned-data": [("loop-2-lessons",), ()]}


def test_every_source_that_cannot_be_read_is_reported_with_its_place(plan):
    (plan.folder / "odd.jsonl").write_text("{not json\n")
    with pytest.raises(RecipeError) as refused:
        plan(one="path:gone.jsonl", two="path:odd.jsonl")
    first, second = refused.value.problems
    assert (first.path, second.path) == ("stages.one.data.sources.0.from", "stages.two.data.sources.0.from")
    assert "gone.jsonl: no such folder or file" in first.message
    assert "odd.jsonl" in second.message
    assert second.line == first.line + 1


QUERY = (
    """{from: path:chats.jsonl, tables: {more: %s}, query: "select text as prompt, 'yes' as completion from more"}"""
)


def test_the_tables_of_a_query_are_in_the_key(plan):
    file = plan.folder / "more.csv"
    file.write_text("text\nfirst\n")
    made = plan(QUERY % "path:more.csv")
    first = made.step("one-data").key
    assert [given.port for given in made.step("one-data").inputs] == ["sources.0.from", "sources.0.tables.more"]
    assert [look.look.examples[0]["id"] for look in look_at_sources(made, plan.layout, examples=1)] == ["query:1"]
    file.write_text("text\nsecond\n")
    assert plan(QUERY % "path:more.csv").step("one-data").key != first
    assert plan((QUERY % "path:more.csv").replace("yes", "no")).step("one-data").key != first


def test_a_mistake_in_a_query_has_its_place(plan):
    (plan.folder / "more.csv").write_text("text\nfirst\n")
    with pytest.raises(RecipeError) as refused:
        plan((QUERY % "path:more.csv").replace("text as", "txt as"), FILE)
    (problem,) = refused.value.problems
    assert (problem.line, problem.path) == (4, "stages.one.data.sources.0.query")
    assert 'Referenced column "txt" not found' in problem.message
