import json
import subprocess
import sys

import pytest

from lineage.artifacts.contract import find_disagreement, read_contract
from lineage.artifacts.seal import write_seal
from lineage.artifacts.store import Store, read_manifest
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.manifest import Manifest

FILES = {
    "a.txt": b"one",
    "sub/b.txt": b"two",
    "sub-c.txt": b"three",
    "Ünïcode/é ß.bin": bytes(range(256)),
    "sub/deep/d": b"",
}


def write(folder, files=FILES):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def published(layout, token="x", files=FILES, value=1):
    store = Store(layout)
    folder = layout.state / "work" / f"tmp-{token}"
    write(folder / "outputs" / "data", files)
    (folder / "step.log").write_text("hello\n")
    identity = {"value": value}
    manifest = Manifest(
        key=digest_of(identity),
        kind="python",
        identity=identity,
        step="s",
        recipe="r",
        run=f"run-{token}",
        seed=0,
        inputs=(),
        outputs=store.describe(folder, {"data": "directory"}),
        started="2026-01-01T00:00:00+00:00",
        seconds=1.0,
    )
    return store, store.publish(folder, manifest)


def test_published_is_found_and_verifies(tmp_path):
    store, manifest = published(Layout(tmp_path))
    assert store.find("python", manifest.key) == manifest
    assert list(store.manifests()) == [manifest]
    assert store.verify(manifest) == []
    assert (store.output_folder("python", manifest.key, "data") / "sub/b.txt").read_bytes() == b"two"


def test_the_second_of_two_equal_publications_is_discarded(tmp_path):
    _, first = published(Layout(tmp_path), "one")
    _, second = published(Layout(tmp_path), "two")
    assert second.run == "run-one"
    assert second == first
    assert [p.name for p in (tmp_path / ".posttrain/artifacts").iterdir()] == [f"python-{first.key[:16]}"]


def test_hashes_are_those_of_dvc(tmp_path):
    store, manifest = published(Layout(tmp_path))
    write(tmp_path / "copy" / "data")
    dvc = [sys.executable, "-m", "dvc"]
    environment = {"PATH": "/usr/bin:/bin", "DVC_NO_ANALYTICS": "1", "HOME": str(tmp_path)}
    for words in (["init", "--no-scm", "-q"], ["add", "-q", "data"]):
        subprocess.run([*dvc, *words], cwd=tmp_path / "copy", check=True, env=environment)
    output = manifest.outputs["data"]
    assert f"md5: {output.dvc}" in (tmp_path / "copy/data.dvc").read_text()
    theirs = tmp_path / "copy/.dvc/cache/files/md5"
    names = {p.relative_to(theirs).as_posix() for p in theirs.rglob("*") if p.is_file()}
    ours = store.layout.dvc_cache
    assert names == {p.relative_to(ours).as_posix() for p in ours.rglob("*") if p.is_file()}
    assert all((ours / n).read_bytes() == (theirs / n).read_bytes() for n in names)


@pytest.mark.parametrize("where", ["artifact", "cache", "extra"])
def test_a_flipped_byte_is_found_and_named(tmp_path, where):
    store, manifest = published(Layout(tmp_path))
    folder = store.folder(manifest)
    file = manifest.outputs["data"].files[1]
    target = {
        "artifact": folder / "outputs/data" / file.path,
        "cache": store.objects.path(file.md5),
        "extra": folder / "outputs/data/extra.txt",
    }[where]
    if where == "extra":
        target.write_text("x")
    else:
        target.chmod(0o644)
        content = bytearray(target.read_bytes())
        content[0] ^= 1
        target.write_bytes(content)
    (wrong,) = store.verify(next(store.manifests()))
    assert target.name in wrong


def test_a_resealed_lie_is_found_and_a_damaged_object_is_replaced(tmp_path):
    store, manifest = published(Layout(tmp_path))
    folder = store.folder(manifest)
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text().replace('"value": 1', '"value": 2'))
    assert store.find("python", manifest.key) is None
    write_seal(folder)
    assert store.find("python", manifest.key) is None
    (wrong,) = store.verify(read_manifest(folder))
    assert "the identity does not give the key" in wrong
    (folder / "seal.json").unlink()
    spoilt = store.objects.path(manifest.outputs["data"].files[0].md5)
    spoilt.chmod(0o644)
    spoilt.write_bytes(b"0" * spoilt.stat().st_size)
    _, again = published(Layout(tmp_path), "again")
    assert again.run == "run-again"
    assert store.verify(again) == []
    assert len(list((tmp_path / ".posttrain/work").glob("damaged-*"))) == 1


def test_restore_brings_back_what_the_cache_has_and_refuses_what_it_has_not(tmp_path):
    store, manifest = published(Layout(tmp_path))
    folder = store.folder(manifest) / "outputs/data"
    (folder / "a.txt").unlink()
    assert store.find("python", manifest.key) is None
    assert len(store.restore(manifest)) == 1
    assert store.verify(manifest) == []
    (folder / "a.txt").unlink()
    store.objects.path(next(f.md5 for f in manifest.outputs["data"].files if f.path == "a.txt")).unlink()
    with pytest.raises(StepError, match=r"a\.txt"):
        store.restore(manifest)


def test_an_output_that_was_not_written_is_refused(tmp_path):
    (tmp_path / "outputs/data").mkdir(parents=True)
    with pytest.raises(StepError, match="'data' was not written"):
        Store(Layout(tmp_path)).describe(tmp_path, {"data": "directory"})


def test_the_contract_distinguishes_templates_and_ignores_lengths(tmp_path):
    made = []
    for name, template, length in (("a", "{{x}}", 64), ("b", "{{x}}", 128), ("c", "{{y}}", 64)):
        folder = tmp_path / name
        folder.mkdir()
        added = [{"id": 0, "content": "<eos>", "special": True}]
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"x": 1}}, "added_tokens": added}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length, "eos_token": "<eos>"}))
        (folder / "chat_template.jinja").write_text(template)
        made.append(read_contract(folder))
    assert [m.max_length for m in made] == [64, 128, 64]
    assert find_disagreement(made[0], made[1]) is None
    assert "chat template" in find_disagreement(made[0], made[2])
    assert made[0].chat_template[:12] in find_disagreement(made[0], made[2])
    assert read_contract(tmp_path) is None
