"""Folders of links to an adapter and its base, made by several steps at once."""

import json
from pathlib import Path

import pytest

from lineage.artifacts.digest_cache import scan_folder
from lineage.layout import Layout
from lineage.sources.stored_adapters import link_adapter


@pytest.fixture
def adapter(tmp_path):
    """Return an adapter and its base; their files need not be models."""
    folders = tmp_path / "adapter", tmp_path / "base"
    for folder, names in zip(
        folders, (("adapter_model.safetensors",), ("config.json", "model.safetensors")), strict=True
    ):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name)
    (folders[0] / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": "elsewhere"}))
    return folders


def test_a_folder_that_one_step_reads_is_not_changed_by_another_that_makes_it_at_the_same_time(
    adapter, tmp_path, monkeypatch
):
    """The second step makes the whole folder and reads it just before the first one's folder gets its name."""
    layout, rename, read = Layout(tmp_path / "root"), Path.rename, []

    def rename_later(self, target):
        monkeypatch.setattr(Path, "rename", rename)
        linked = link_adapter(*adapter, layout)
        read.append((linked, scan_folder(linked, links=True)))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_later)
    linked = link_adapter(*adapter, layout)
    assert read == [(linked, scan_folder(linked, links=True))]
    assert [entry.name for entry in linked.parent.iterdir()] == [linked.name]
    settings = json.loads((linked / "adapter_config.json").read_text())
    assert settings == {"r": 4, "base_model_name_or_path": str(linked / "base")}
    assert sorted(read[0][1].files) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "base/config.json",
        "base/model.safetensors",
    ]
    assert link_adapter(*adapter, layout) == linked
