"""No damaged artifact is a HIT, is read, or is promoted: it is restored or made again, and both are said."""

import json
import shutil
from pathlib import Path

import pytest

from flows.execution.run_log import list_runs, read_plan
from flows.runs.launch import run_plan
from lineage.artifacts.published import find_arrival
from lineage.artifacts.seal import write_seal
from lineage.artifacts.signature import write_signature
from lineage.artifacts.store import read_manifest
from lineage.audit.log import hash_entry, log_file, read_entries
from lineage.digests import content_digest, dvc_digest, folder_digests
from lineage.keys import load_trusted_keys
from lineage.layout import Layout
from lineage.registry.champions import check_artifact
from lineage.verification.verify import verify
from schemas.errors import PlanError
from tests.security.store_lab import TRUTH, Lab, flipped, harms, write_over

OUTPUTS = [
    f"outputs/result/{name}" for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
]
BESIDE = ["manifest.json", "seal.json", "signature.json", "metrics.jsonl", "step.log"]
HARMS = list(harms(Path("/nowhere")))
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The finished run that tests copy."""
    lab = Lab(tmp_path_factory.mktemp("finished") / "root")
    module = lab.write()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(lab.root))
        assert set(lab.states().values()) == {"done"}
        assert lab.seen() == [TRUTH]
        yield lab, module


@pytest.fixture
def lab(finished, tmp_path):
    """A copy of the finished run. Its recipe is the same text, and so its keys."""
    shutil.copytree(finished[0].root, tmp_path / "root")
    copy = Lab(tmp_path / "root")
    copy.log = finished[0].log
    copy.log.write_text("")
    return copy


def check_brought_back(lab, again):
    """Check that a run brings a damaged `model` back, and that all is HIT and verifies then."""
    states = lab.run()
    assert states["model"].state == ("done" if again else "cached")
    assert {states[name].state for name in ("twin", "table")} == {"cached"}
    assert lab.found("model") is not None
    assert [state for state, _ in lab.verdicts().values()] == ["HIT"] * 4
    assert verify(lab.layout).problems == ()
    return states


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_output_is_no_hit_and_is_restored(lab, harm, tmp_path):
    name = OUTPUTS[0]
    path = lab.folder("model") / name
    content = path.read_bytes()
    harms(tmp_path / "outside")[harm](path)
    assert lab.found("model") is None
    verdict, why = lab.verdicts()["model"]
    assert verdict == "MISS"
    assert f"damaged: {name}" in why
    assert "a run restores it from DVC's cache" in why
    with pytest.raises(PlanError, match="is not what was published"):
        check_artifact(lab.layout, read_manifest(lab.folder("model")))
    states = check_brought_back(lab, again=False)
    assert f"restored from DVC's cache: {name}" in states["model"].reason
    assert path.read_bytes() == content
    assert not path.is_symlink()
    noted = [entry["facts"] for entry in read_entries(lab.layout) if entry["action"] == "artifact restored"]
    assert [facts["files"] for facts in noted] == [[name]]


@pytest.mark.parametrize("name", [*OUTPUTS, *BESIDE])
def test_a_flipped_bit_is_no_hit_wherever_it_is(lab, name):
    path = lab.folder("model") / name
    for at in (0, path.stat().st_size // 2, path.stat().st_size - 1):
        content = path.read_bytes()
        write_over(path, flipped(content, at))
        assert lab.found("model") is None, at
        assert lab.verdicts()["model"][0] == "MISS"
        write_over(path, content)
        assert lab.found("model") is not None


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *((name, "flipped, times restored") for name in BESIDE),
        ("manifest.json", "a pipe"),
        ("seal.json", "a pipe"),
        ("metrics.jsonl", "a pipe"),
        ("manifest.json", "a link to the same bytes"),
        ("signature.json", "emptied"),
    ],
)
def test_what_the_cache_has_not_is_made_again(lab, name, harm, tmp_path):
    path = lab.folder("model") / name
    harms(tmp_path / "outside")[harm](path)
    assert "a run makes it again" in lab.verdicts()["model"][1]
    check_brought_back(lab, again=True)
    (noted,) = [entry["facts"] for entry in read_entries(lab.layout) if entry["action"] == "artifact damaged"]
    assert any(damage.startswith(name) for damage in noted["damages"])


@pytest.mark.parametrize("what", ["object flipped", "object missing"])
def test_an_output_whose_copy_is_damaged_too_is_made_again(lab, what):
    path = lab.folder("model") / OUTPUTS[0]
    (file,) = [f for f in lab.found("model").outputs["result"].files if f.path == "model.safetensors"]
    copy = lab.store.objects.path(file.md5)
    write_over(path, flipped(path.read_bytes()))
    copy.chmod(0o644)
    copy.write_bytes(flipped(copy.read_bytes())) if what == "object flipped" else copy.unlink()
    assert "a run makes it again" in lab.verdicts()["model"][1]
    check_brought_back(lab, again=True)


def test_a_damaged_copy_alone_is_used_by_nothing(lab):
    (file,) = [f for f in lab.found("model").outputs["result"].files if f.path == "model.safetensors"]
    copy = lab.store.objects.path(file.md5)
    copy.chmod(0o644)
    copy.write_bytes(flipped(copy.read_bytes()))
    assert set(lab.states().values()) == {"cached"}
    assert any(str(copy) in problem for problem in verify(lab.layout).problems)


def test_a_file_that_was_added_is_no_part_of_the_artifact(lab):
    added = lab.folder("model") / "outputs/result/adapter_config.json"
    added.write_text("{}")
    assert lab.found("model") is None
    check_brought_back(lab, again=False)
    assert not added.exists()


def test_a_file_that_was_added_beside_the_outputs_is_no_part_of_it(lab):
    (lab.folder("model") / "more.txt").write_text("x")
    assert lab.found("model") is None
    check_brought_back(lab, again=True)


def test_swapped_weights_of_equal_size_are_never_read(lab):
    one, other = (lab.folder(name) / OUTPUTS[0] for name in ("model", "twin"))
    contents = one.read_bytes(), other.read_bytes()
    assert len(contents[0]) == len(contents[1])
    write_over(one, contents[1])
    write_over(other, contents[0])
    lab.forget("reads")
    assert lab.states() == {"model": "cached", "twin": "cached", "table": "cached", "reads": "done"}
    assert lab.seen() == [TRUTH]
    assert (one.read_bytes(), other.read_bytes()) == contents


@pytest.mark.parametrize("how", ["the whole artifact", "the outputs", "a link to the outputs", "a link to the twin"])
def test_a_folder_in_the_place_of_another_is_never_read(lab, how):
    one, other = lab.folder("model"), lab.folder("twin")
    if how == "the whole artifact":
        shutil.rmtree(one)
        shutil.copytree(other, one)
    elif how == "the outputs":
        shutil.rmtree(one / "outputs/result")
        shutil.copytree(other / "outputs/result", one / "outputs/result")
    elif how == "a link to the outputs":
        (one / "outputs").rename(lab.root / "elsewhere")
        (one / "outputs").symlink_to(lab.root / "elsewhere")
    else:
        shutil.rmtree(one)
        one.symlink_to(other)
    assert lab.found("model") is None
    lab.forget("reads")
    states = lab.states()
    assert states["reads"] == "done"
    assert lab.seen() == [TRUTH]
    assert lab.found("model") is not None
    assert lab.found("twin") is not None
    assert verify(lab.layout).problems == ()


def test_a_manifest_that_was_sealed_again_does_not_fit_its_signature(lab):
    folder = lab.folder("model")
    record = json.loads((folder / "manifest.json").read_text())
    record["metrics"] = {"accuracy": 1.0}
    (folder / "manifest.json").write_text(json.dumps(record))
    write_seal(folder)
    assert read_manifest(folder).metrics == {"accuracy": 1.0}
    assert lab.found("model") is None
    assert "is not what was signed" in lab.verdicts()["model"][1]
    check_brought_back(lab, again=True)
    assert lab.found("model").metrics == {}


def forge(lab, folder, *, weights=True):
    """Other weights or metrics, and everything that can be made without the signing key made to fit them."""
    record = json.loads((folder / "manifest.json").read_text())
    if weights:
        path = folder / OUTPUTS[0]
        path.write_bytes(flipped(path.read_bytes(), path.stat().st_size - 1))
        files = folder_digests(folder / "outputs/result")
        listed = [json.loads(file.model_dump_json()) for file in files]
        record["outputs"]["result"] |= {"files": listed, "digest": content_digest(files), "dvc": dvc_digest(files)}
    record["metrics"] = {"accuracy": 1.0}
    (folder / "manifest.json").write_text(json.dumps(record))
    write_seal(folder)


@pytest.mark.parametrize("signature", ["kept", "removed", "of another key"])
@pytest.mark.parametrize("weights", [True, False], ids=["weights", "metrics"])
def test_a_forgery_in_which_everything_fits_is_not_what_the_log_saw(lab, weights, signature, tmp_path):
    folder = lab.folder("model")
    forge(lab, folder, weights=weights)
    if signature == "removed":
        (folder / "signature.json").unlink()
    elif signature == "of another key":
        write_signature(Layout(tmp_path / "stranger"), folder, read_manifest(folder))
    assert read_manifest(folder).metrics == {"accuracy": 1.0}
    assert lab.found("model") is None
    check_brought_back(lab, again=True)
    assert lab.found("model").metrics == {}


def test_a_line_that_was_put_into_the_log_is_not_believed(lab):
    folder = lab.folder("model")
    forge(lab, folder)
    (folder / "signature.json").unlink()
    manifest = read_manifest(folder)
    last = list(read_entries(lab.layout))[-1]
    facts = {"key": manifest.key, "digests": {"result": manifest.outputs["result"].digest}, "signed_by": None}
    line = last | {"action": "artifact published", "number": last["number"] + 1, "facts": facts}
    line["hash"] = hash_entry(line)
    stranger = line | {"signature": {"keyid": "0" * 64, "sig": "0" * 128}}
    pulled = line | {"action": "pull", "facts": {"artifacts": [manifest.key]}}
    with log_file(lab.layout).open("a") as log:
        for forged in (line, stranger, pulled):
            log.write(json.dumps(forged, sort_keys=True, separators=(",", ":")) + "\n")
    assert find_arrival(lab.layout, manifest.key, load_trusted_keys(lab.layout))["number"] < line["number"]
    assert lab.found("model") is None
    assert any("has a signature that does not fit" in problem for problem in verify(lab.layout).problems)


def test_a_damaged_input_is_met_by_resume_as_by_run(lab):
    path = lab.folder("table") / "outputs/result/rows.parquet"
    write_over(path, flipped(path.read_bytes()))
    lab.forget("reads")
    (name,) = list_runs(lab.layout)
    states = run_plan(read_plan(lab.layout, name), lab.layout, executor="inprocess", prefect=False, run=name).states
    assert {state.state for state in states.values()} == {"cached", "done"}
    assert lab.seen() == [TRUTH]
    assert verify(lab.layout).problems == ()
