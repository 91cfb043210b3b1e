"""`--stand-ins`: rows in the form of data that are not here, which every format reads."""

import json
from pathlib import Path
from typing import get_args

import pytest

from flows.planning.stand_in_tasks import replace_missing_tasks
from flows.planning.stand_ins import make_row
from flows.planning.tiny import derive_tiny
from learning.data.sources.columns import make_mapping
from learning.data.sources.formats import READERS, convert_row
from learning.data.sources.ratings import group_by_prompt
from learning.data.sources.records import Record
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.recipe.load import load_recipe
from schemas.row_formats import EMITS, Format
from schemas.stages.data import Source


def convert(source, emit, count=4):
    """The rows of a source that stands in, as a step converts them."""
    mapping = make_mapping(source.columns)
    rows = [make_row(source, emit, number) for number in range(count)]
    if source.format == "ratings":
        records = (Record("f", n, row) for n, row in enumerate(rows))
        rows = [record.values for record in group_by_prompt(records, mapping, source.ratings)]
        return [convert_row(READERS["ratings"], row, f"f:{n}", emit) for n, row in enumerate(rows)]
    return [convert_row(READERS[source.format], mapping(row), f"f:{n}", emit) for n, row in enumerate(rows)]


@pytest.mark.parametrize(("name", "emit"), [(name, emit) for name in get_args(Format) for emit in EMITS[name]])
def test_rows_of_every_format_can_be_read(name, emit):
    ratings = {"helpfulness": 1.0} if name == "ratings" else {}
    rows = convert(Source.model_validate({"from": "hub:lab/rows", "format": name, "ratings": ratings}), emit)
    texts = [json.dumps(row, default=str) for row in rows]
    assert len(set(texts)) == len(texts) >= 2


def test_rows_have_the_columns_that_the_source_maps():
    columns = {"prompt": "{meta.topic}: {question}", "answer": "{reward_model.ground_truth}", "id": "key"}
    source = Source.model_validate({"from": "hub:lab/rows", "format": "prompts", "columns": columns})
    assert make_row(source, "prompts", 3).keys() == {"meta", "question", "reward_model", "key"}
    first = convert(source, "prompts")[0]
    assert first["answer"] == "2"
    assert first["id"] == "id 0"


def test_only_what_is_not_here_is_replaced(tmp_path):
    (tmp_path / "here.jsonl").write_text('{"messages": []}\n')
    (tmp_path / "r.yaml").write_text("""
stages:
  tuned:
    kind: sft
    model: hub:lab/llama
    train_on: marked
    data:
      - path:here.jsonl
      - {from: hub:lab/chats, split: test, max_rows: 5}
      - {from: path:missing.csv, format: alpaca}
""")
    recipe, layout = load_recipe(tmp_path / "r.yaml"), Layout(tmp_path)
    tiny = load_recipe(tmp_path / "r.yaml", top=derive_tiny(recipe, layout, stand_ins=True))
    kept, chats, table = tiny.stages["tuned-data"].sources
    assert kept.from_ == "path:here.jsonl"
    assert (chats.split, chats.max_rows) == (None, 5)
    rows = [json.loads(line) for line in Path(chats.from_.removeprefix("path:")).read_text().splitlines()]
    assert [message.get("train") for message in rows[0]["messages"]] == [None, True]
    assert {"instruction", "input", "output"} == json.loads(Path(table.from_[5:]).read_text().split("\n")[0]).keys()


def test_a_query_over_unknown_columns_is_refused_by_name(tmp_path):
    (tmp_path / "r.yaml").write_text("""
stages:
  tuned: {kind: sft, model: hub:lab/llama, data: {from: hub:lab/chats, query: select a as prompt from rows}}
""")
    with pytest.raises(PlanError, match="the columns that its query reads are not known"):
        derive_tiny(load_recipe(tmp_path / "r.yaml"), Layout(tmp_path), stand_ins=True)


def test_tasks_of_lm_eval_keep_their_output_and_their_metrics(tmp_path):
    task = replace_missing_tasks({"use": "lm_eval", "tasks": ["gsm8k", "hellaswag", "wikitext"]}, Layout(tmp_path))
    folder = Path(task["include_path"].removeprefix("path:"))
    texts = {name: (folder / f"{name}.yaml").read_text() for name in task["tasks"]}
    assert "strict-match" in texts["gsm8k"]
    assert "output_type: multiple_choice" in texts["hellaswag"]
    assert "acc_norm" in texts["hellaswag"]
    assert "output_type: loglikelihood_rolling" in texts["wikitext"]
    group = replace_missing_tasks({"use": "lm_eval", "tasks": ["mmlu_stem"]}, Layout(tmp_path))
    names = {file.stem for file in Path(group["include_path"].removeprefix("path:")).glob("*.yaml")}
    assert "mmlu_astronomy" in names
    assert "mmlu_stem" not in names
    tagged = replace_missing_tasks({"use": "lm_eval", "tasks": ["ai2_arc"]}, Layout(tmp_path))
    names = {file.stem for file in Path(tagged["include_path"].removeprefix("path:")).glob("*.yaml")}
    assert names == {"arc_easy", "arc_challenge"}  # the second has its tag from the file that it includes
    given = {"use": "lm_eval", "tasks": ["gsm8k"], "include_path": "path:mine"}
    assert replace_missing_tasks(given, Layout(tmp_path)) == given
