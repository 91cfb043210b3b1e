"""What counts as a change of a file, of what DVC tracks, of a dataset and of an alias in MLflow; on the real ones."""

import os
import shutil

import pytest
from dvc.repo import Repo

from lineage.layout import Layout
from lineage.sources.watched import digest_source, stat_source


def both(source, layout):
    return stat_source(source, layout, [layout.root]), digest_source(source, layout, [layout.root])


def test_a_file_and_a_folder_are_their_bytes(tmp_path):
    layout = Layout(tmp_path)
    assert digest_source("path:x", layout, [tmp_path]) is None
    (tmp_path / "x").write_text("1")
    before = both("path:x", layout)
    os.utime(tmp_path / "x", (1, 1))
    after = both("path:x", layout)
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)
    (tmp_path / "f/g").mkdir(parents=True)
    (tmp_path / "f/g/y").write_text("2")
    first = both("path:f", layout)
    (tmp_path / "f/g/y").rename(tmp_path / "f/g/z")
    assert both("path:f", layout)[1] != first[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_dvc_tracks_changes_with_its_record_and_not_with_the_copy_checked_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        (tmp_path / "data/deep").mkdir(parents=True)
        (tmp_path / "data/x.csv").write_text("1")
        (tmp_path / "data/deep/y").write_text("2")
        repo.add(["data/x.csv", "data/deep"])
        layout = Layout(tmp_path)
        sources = ("dvc:data/x.csv", "dvc:data/deep", "dvc:data/deep/y")
        first = {source: both(source, layout) for source in sources}
        assert first["dvc:data/x.csv"][1] == "c4ca4238a0b923820dcc509a6f75849b"
        assert first["dvc:data/deep"][1].endswith(".dir")
        assert both("dvc:data/x.csv.dvc", layout) == first["dvc:data/x.csv"]
        (tmp_path / "data/x.csv").unlink()
        shutil.rmtree(tmp_path / "data/deep")
        assert {source: both(source, layout) for source in sources} == first
        (tmp_path / "data/x.csv").write_text("11")
        assert both("dvc:data/x.csv", layout) == first["dvc:data/x.csv"]
        repo.add(["data/x.csv"])
        second = both("dvc:data/x.csv", layout)
        assert second[0] != first["dvc:data/x.csv"][0]
        assert second[1] == "6512bd43d9caa6e02c990b0a82652dca"
        assert both("dvc:data/deep", layout)[1] == first["dvc:data/deep"][1]
        assert digest_source("dvc:data/none", layout, [tmp_path]) is None


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    from lineage.registry.client import open_client

    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    return open_client(Layout(tmp_path)), Layout(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_dataset_is_its_latest_digest_and_an_alias_its_version(tmp_path, mlflow):
    from mlflow.entities import Dataset, DatasetInput

    client, layout = mlflow
    experiment = client.create_experiment("e", (tmp_path / "a").as_uri())
    source, alias = "mlflow-dataset:lessons", "mlflow:tutor@canary"
    assert (digest_source(source, layout, []), digest_source(alias, layout, [])) == (None, None)
    seen = []
    for digest in ("d1", "d2"):
        run = client.create_run(experiment)
        for name in ("other", "lessons"):
            client.log_inputs(run.info.run_id, [DatasetInput(Dataset(name, f"{digest}-{name}", "posttrain", "{}"), [])])
        seen.append(both(source, layout))
    assert [digest for _, digest in seen] == ["d1-lessons", "d2-lessons"]
    assert seen[0][0] != seen[1][0]
    client.create_registered_model("tutor")
    for key in ("1" * 64, "2" * 64):
        version = client.create_model_version("tutor", "dvc:///files/x", tags={"key": key})
        assert digest_source(alias, layout, []) == (None if int(version.version) == 1 else "version 1 1111111111111111")
        client.set_registered_model_alias("tutor", "canary", version.version)
        assert digest_source(alias, layout, []) == f"version {version.version} {key[:16]}"
    client.set_registered_model_alias("tutor", "champion", "1")
    assert digest_source("mlflow:tutor@champion", layout, []) is None  # an alias set by hand makes no champion
