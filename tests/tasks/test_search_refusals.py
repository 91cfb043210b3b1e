"""What a search refuses when it starts: a test split that only a library's task file names."""

import json

import pytest

from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate
from schemas.stages.search import Search
from tasks.context import Context
from tasks.search_refusals import refuse_test_splits

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{{split}: data.jsonl}}}}
{split}_split: {split}
output_type: generate_until
doc_to_text: '{{{{question}}}}'
doc_to_target: '{{{{answer}}}}'
generation_kwargs: {{until: [x], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
"""


def make_stage(task):
    tasks = [{"use": "lm_eval", "tasks": [task], "include_path": "path:tasks"}]
    return Evaluate(kind="evaluate", models={"policy": "p"}, tasks=tasks)


def test_a_test_split_of_lm_eval_is_refused_by_name(tmp_path):
    rows = [{"question": f"{i}+{i}=", "answer": str(2 * i)} for i in range(4)]
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, split in (("exam", "test"), ("practice", "validation")):
        (tmp_path / f"tasks/{name}.yaml").write_text(TASK.format(name=name, split=split))
    context = Context({"tasks.0.include_path": tmp_path / "tasks"}, tmp_path, tmp_path / "checkpoints", seed=1)
    refuse_test_splits(make_stage("practice"), context)
    with pytest.raises(StepError, match="task exam evaluates its test split"):
        refuse_test_splits(make_stage("exam"), context)


def test_the_code_of_the_refusal_is_part_of_the_key_where_it_runs():
    search = Search(kind="search", train="t", evaluate="e", metric="accuracy", space={"learning_rate": [0.1, 0.2]})
    assert "refuse_test_splits" not in search.optional_code()
    whole = search.model_copy(update={"evaluated": make_stage("practice")})
    assert whole.optional_code()["refuse_test_splits"] == ("tasks.search_refusals", "refuse_test_splits")
