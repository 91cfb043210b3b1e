import pytest

from learning.data.sources.files import list_data_files
from schemas.errors import StepError

README = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: data/en/*.jsonl}
  - {split: test, path: [held/en.jsonl]}
- config_name: de
  data_files: data/de/a.jsonl
---
# A data set
"""
LISTED = ["README.md", ".gitattributes", "data/en/1.jsonl", "data/en/2.jsonl", "held/en.jsonl", "data/de/a.jsonl"]
NAMED = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"]


@pytest.fixture
def files(tmp_path):
    def make(names, *chosen, readme=""):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(readme if name == "README.md" else "")
        return [path.relative_to(tmp_path).as_posix() for path in list_data_files(tmp_path, *chosen)]

    return make


def test_the_readme_of_a_data_set_lists_subsets_and_splits(files):
    assert files(LISTED, "en", readme=README) == ["data/en/1.jsonl", "data/en/2.jsonl"]
    assert files(LISTED, "en", "test", readme=README) == ["held/en.jsonl"]
    assert files(LISTED, "de", readme=README) == ["data/de/a.jsonl"]
    for chosen, message in {
        (): "holds several subsets: de, en; name one with `subset`",
        ("fr",): "no subset `fr`: de, en",
        ("en", "validation"): "no split `validation`; splits: test, train",
    }.items():
        with pytest.raises(StepError, match=message):
            files(LISTED, *chosen, readme=README)


@pytest.mark.parametrize(
    ("names", "chosen", "expected"),
    [
        (NAMED, (), NAMED[:2]),
        (NAMED, (None, "test"), NAMED[2:]),
        (["train.jsonl", "valid.jsonl"], (None, "validation"), ["valid.jsonl"]),
        (["train.jsonl", "valid.jsonl"], (None, "valid"), ["valid.jsonl"]),
        (["math_train.jsonl", "math_test.jsonl"], (), ["math_train.jsonl"]),
        (["en/train.json", "de/train.json"], ("de",), ["de/train.json"]),
        (["one.jsonl", "two.jsonl", "README.md", "LICENSE"], (), ["one.jsonl", "two.jsonl"]),
    ],
)
def test_without_such_a_list_the_names_of_files_say_the_split(files, names, chosen, expected):
    assert files(names, *chosen) == expected


@pytest.mark.parametrize(
    ("names", "chosen", "message"),
    [
        (["dev.jsonl", "test.jsonl"], (), "holds test, validation and no train; name one with `split`"),
        (["a.jsonl"], (None, "test"), "no split `test`; splits: none"),
        (["en/a.jsonl"], ("fr",), "no subset `fr`; folders: en"),
        ([f"{lang}/train-00000-of-00001.parquet" for lang in ("en", "de")], (), "holds several subsets: de, en"),
        (["load.py", "a.jsonl"], (), r"load\.py: no file of rows"),
    ],
)
def test_what_is_not_there_or_not_clear_is_refused(files, names, chosen, message):
    with pytest.raises(StepError, match=message):
        files(names, *chosen)
