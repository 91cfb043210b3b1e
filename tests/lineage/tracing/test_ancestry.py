import json

import pytest
from rich.console import Console

from lineage.tracing.ancestry import render, trace
from lineage.tracing.target import UnknownTarget
from lineage.verification.verify import verify


def steps(nodes):
    return {node.record["step"] for node in nodes}


def test_up_reaches_the_data_and_down_every_model(small_run):
    ancestry = trace(small_run.layout, "tuned")
    assert steps(ancestry.up) == {"tuned", "base", "lessons_clean", "lessons"}
    assert steps(trace(small_run.layout, "lessons").down) == {"lessons", "lessons_clean", "tuned", "raw"}


def test_a_row_dropped_by_curation_is_not_passed_on(small_run):
    assert steps(trace(small_run.layout, "a").down) == {"lessons", "lessons_clean", "tuned", "raw"}
    dropped = trace(small_run.layout, "b")
    assert steps(dropped.down) == {"lessons", "raw"}
    assert dropped.target.dropped == ((small_run.made["lessons_clean"].key, "contaminated", "holds problem 3"),)


def test_every_kind_of_target(small_run):
    made = small_run.made["tuned"]
    output = made.outputs["policy"]
    folder = small_run.store.folder(made)
    words = [made.key[:8], output.digest[:10], output.dvc, output.files[0].sha256[:12], str(folder), "small.tuned"]
    for word in [*words, str(folder / "outputs/policy/model.safetensors")]:
        assert trace(small_run.layout, word).target.keys == (made.key,), word
    assert trace(small_run.layout, "path:./words").target.keys == (small_run.made["lessons"].key,)
    assert len(trace(small_run.layout, "run-1").target.keys) == 5
    with pytest.raises(UnknownTarget, match="nothing here is called 'nowhere'"):
        trace(small_run.layout, "nowhere")


def test_a_run_names_also_what_it_found_already_made(small_run):
    small_run.layout.run("run-2").mkdir(parents=True)
    (small_run.layout.run("run-2") / "plan.json").write_text(small_run.plan().model_dump_json())
    assert len(trace(small_run.layout, "run-2").target.keys) == 5


def test_the_latest_artifact_of_a_step_is_meant(small_run):
    newer = small_run.make(
        "tuned", "sft", {"policy": {"w": b"3"}}, {"policy": "policy"}, salt="2", started="2027-01-01T00:00:00Z"
    )
    assert trace(small_run.layout, "tuned").target.keys == (newer.key,)


def test_what_is_shown_names_sources_digests_and_what_was_dropped(small_run):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(render(trace(small_run.layout, "tuned")))
    console.file.close()
    text = console.export_text()
    for expected in (
        "contaminated: 1 rows dropped",
        "path:./words",
        small_run.made["base"].outputs["policy"].digest[:12],
        "seed 7",
    ):
        assert expected in text
    assert json.loads(json.dumps(trace(small_run.layout, "b").as_json()))["dropped"][0]["reason"] == "contaminated"


def test_a_flipped_byte_is_named(small_run):
    assert verify(small_run.layout).problems == ()
    assert verify(small_run.layout).files == 7
    path = small_run.store.output_folder("sft", small_run.made["tuned"].key, "policy") / "model.safetensors"
    path.write_bytes(b"w9")
    assert [str(path) in problem for problem in verify(small_run.layout).problems] == [True]
    assert verify(small_run.layout, "lessons_clean").problems == ()
    assert len(verify(small_run.layout, "tuned").problems) == 1


def test_ancestry_over_ten_thousand_artifacts(small_run):
    """A chain of 5,000 and 5,000 others."""
    base = json.loads((small_run.store.folder(small_run.made["tuned"]) / "manifest.json").read_text())
    previous = None
    for number in range(10_000):
        key = f"{number:064x}"
        inputs = [{**base["inputs"][0], "key": previous}] if previous and number < 5_000 else []
        folder = small_run.layout.artifact("sft", f"{number:016d}")
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({**base, "key": key, "step": f"s{number}", "inputs": inputs}))
        previous = key
    assert len(trace(small_run.layout, "s4999").up) == 5_000
