"""A data set of the hub, as its cache holds it: a commit, found without the network, read where it lies."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from learning.data.rows import SCHEMAS, read_rows
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import PlanError

COMMIT = "3" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """One data set of two shards and a split apart, its files behind links as the hub's client leaves them."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    home = tmp_path / "hub/datasets--lab--chats"
    for folder in ("refs", "blobs", f"snapshots/{COMMIT}/data"):
        (home / folder).mkdir(parents=True)
    (home / "refs/main").write_text(COMMIT)
    for number, name in enumerate(["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]):
        row = {"id": name, "prompt": [{"role": "user", "content": "q"}], "completion": []}
        pq.write_table(pa.Table.from_pylist([row], schema=SCHEMAS["chat"]), home / "blobs" / str(number))
        (home / f"snapshots/{COMMIT}/data/{name}.parquet").symlink_to(home / "blobs" / str(number))
    return Layout(tmp_path / "state")


def test_its_commit_is_its_digest_and_its_training_split_is_read(cache):
    for reference in ("hub:lab/chats", "hub:lab/chats@main", f"hub:lab/chats@{COMMIT}"):
        source = find_source(reference, cache, ())
        assert source.digest == COMMIT
        ids = [row["id"] for row in read_rows(source.folder, "chat")]
        assert ids == ["train-00000-of-00002", "train-00001-of-00002"]


def test_what_is_not_there_is_asked_for(cache):
    with pytest.raises(PlanError, match=r"hf download lab/other \(--repo-type dataset for data\)"):
        find_source("hub:lab/other", cache, ())
