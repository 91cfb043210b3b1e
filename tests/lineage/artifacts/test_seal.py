"""No byte of an artifact changes unseen."""

import pytest

from flows.history.audit import show_verification
from lineage.artifacts.store import read_manifest
from lineage.records import read_records
from lineage.verification.verify import verify


def flip(path, position):
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def every_file(layout):
    return sorted(p for top in (layout.state / "artifacts", layout.dvc_cache) for p in top.rglob("*") if p.is_file())


def test_a_flipped_byte_anywhere_is_named_and_nothing_else_is(small_run, capsys):
    layout = small_run.layout
    assert verify(layout).problems == ()
    seen = set()
    for path in every_file(layout):
        if not path.stat().st_size:
            continue
        seen.add(path.name if "artifacts" in path.parts else "object")
        for position in {0, path.stat().st_size // 2, path.stat().st_size - 1}:
            flip(path, position)
            problems = verify(layout).problems
            assert problems, path
            assert all(str(path) in line for line in problems), (path, position, problems)
            flip(path, position)
    assert {"manifest.json", "seal.json", "metrics.jsonl", "object"} <= seen
    assert verify(layout).problems == ()


@pytest.mark.parametrize("name", ["manifest.json", "seal.json", "metrics.jsonl"])
def test_a_missing_and_a_foreign_file_are_named(small_run, name):
    layout = small_run.layout
    folder = small_run.store.folder(small_run.made["tuned"])
    (folder / name).rename(folder / "renamed")
    problems = "\n".join(verify(layout).problems)
    assert name in problems
    assert name == "seal.json" or "renamed: not in the seal" in problems


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b'{"key": 3}'])
def test_a_damaged_manifest_is_no_artifact_and_stops_no_reader(small_run, damage):
    layout, store = small_run.layout, small_run.store
    made = small_run.made["tuned"]
    (store.folder(made) / "manifest.json").write_bytes(damage)
    assert store.find(made.kind, made.key) is None
    assert made.key not in {m.key for m in store.manifests()}
    assert made.key not in {r["key"] for r in read_records(layout)}
    assert read_manifest(store.folder(made)) is None
    assert any("manifest.json" in line for line in verify(layout).problems)


def test_verification_fails_by_its_exit_code(small_run, capsys):
    from rich.console import Console

    flip(small_run.store.folder(small_run.made["tuned"]) / "metrics.jsonl", 0)
    assert show_verification(None, small_run.layout, Console(), False) == 1
    assert show_verification("tuned", small_run.layout, Console(), False) == 1
    assert show_verification("base", small_run.layout, Console(), False) == 0
