"""What cannot be data is refused before anything is opened or hashed."""

import os

import pytest

from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.errors import PlanError


@pytest.fixture
def layout(tmp_path):
    (tmp_path / "lab").mkdir()
    return Layout(tmp_path / "lab")


@pytest.mark.parametrize(
    "reference",
    [
        "path:/",
        "path:~",
        "path:/proc/self",
        "path:/sys",
        "path:/dev",
        "path:/etc",
        "path:/usr",
        "path:.",
        "path:..",
        "path:/dev/shm",
        "path:~nobody-here/x",
        "path:" + "a" * 5000,
        "path:a\0b",
        "hub:a/b@../../x",
        "hub:a/b@/proc/kmsg",
        "hub:a/../b",
    ],
)
def test_what_cannot_be_data_is_refused(reference, layout):
    with pytest.raises(PlanError) as caught:
        find_source(reference, layout, [layout.root])
    assert len(str(caught.value)) < 500


def test_a_folder_with_a_pipe_is_refused_and_not_waited_for(layout):
    (layout.root / "data").mkdir()
    os.mkfifo(layout.root / "data" / "rows")
    with pytest.raises(PlanError, match="rows is a pipe"):
        find_source("path:data", layout, [layout.root])


def test_links_in_a_circle_are_not_followed(layout):
    (layout.root / "data").mkdir()
    (layout.root / "data" / "rows").write_text("x")
    plain = find_source("path:data", layout, [layout.root]).digest
    (layout.root / "data" / "again").symlink_to(layout.root / "data")
    (layout.root / "data" / "itself").symlink_to("itself")
    assert find_source("path:data", layout, [layout.root]).digest == plain


def test_a_folder_of_too_many_files_is_refused(layout, monkeypatch):
    monkeypatch.setattr("lineage.sources.outside.MAX_FILES", 3)
    (layout.root / "data").mkdir()
    for number in range(4):
        (layout.root / "data" / str(number)).touch()
    with pytest.raises(PlanError, match="more than 3 files"):
        find_source("path:data", layout, [layout.root])


def test_a_gguf_file_is_an_input_by_its_content(layout):
    (layout.root / "a.gguf").write_bytes(b"weights")
    (layout.root / "b.gguf").write_bytes(b"weights")
    first, second = (find_source(f"path:{name}.gguf", layout, [layout.root]) for name in "ab")
    assert first.digest == second.digest
    assert [file.read_bytes() for file in first.folder.iterdir()] == [b"weights"]
    (layout.root / "a.gguf").write_bytes(b"others")
    again = find_source("path:a.gguf", layout, [layout.root])
    assert again.folder == first.folder
    assert again.digest != first.digest


def test_no_other_file_is_an_input(layout):
    (layout.root / "a.bin").write_bytes(b"weights")
    with pytest.raises(PlanError, match="no input by itself"):
        find_source("path:a.bin", layout, [layout.root])
