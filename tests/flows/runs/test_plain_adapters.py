"""Adapters over GGUF files and over other adapters load with transformers and peft: their base is converted once."""

import os
import time

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from flows.history.garbage import Policy, find_garbage
from flows.runs import plain_adapters
from flows.runs.plain_adapters import make_plain
from learning.models.policy import load_policy
from lineage.sources.converted_bases import find_unneeded_bases
from lineage.sources.resolve import complete_adapter
from tests.flows.steps.test_base_records import Steps
from tests.learning.models.test_adapters import IDS
from tests.learning.models.test_gguf import exported, make_policy

pytestmark = pytest.mark.filterwarnings("ignore")  # peft warns of tied weights


@pytest.fixture
def steps(tmp_path):
    return Steps(tmp_path / "checkout")


@pytest.fixture
def gguf(steps, tmp_path):
    """A GGUF file whose weights are quantised, beside the recipes of the checkout."""
    folder, _ = exported(tmp_path, make_policy("qwen3"), "q8_0")
    steps.layout.root.mkdir(exist_ok=True)
    (folder / "m.gguf").rename(steps.layout.root / "m.gguf")
    return "path:m.gguf"


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def make(steps, made):
    return make_plain(complete_adapter(steps.folder(made), steps.layout), steps.layout)


def test_an_adapter_over_a_gguf_file_loads_with_transformers_and_peft(steps, gguf, monkeypatch, capsys):
    first, logits = steps.adapt("one", steps.receive(None, gguf))
    second, others = steps.adapt("two", steps.receive(None, gguf), seed=2)
    place = make(steps, first)
    assert "converted once" in capsys.readouterr().err
    monkeypatch.setattr(plain_adapters, "_convert", None)  # from here on the converted base is there
    assert make(steps, first) == place
    for folder, expected in ((place, logits), (make(steps, second), others)):
        close(AutoModelForCausalLM.from_pretrained(folder).eval()(IDS).logits, expected)
        close(AutoPeftModelForCausalLM.from_pretrained(folder).eval()(IDS).logits, expected)
        base = AutoModelForCausalLM.from_pretrained(folder / "base")
        close(PeftModel.from_pretrained(base, folder).eval()(IDS).logits, expected)
        close(load_policy(folder).model(IDS).logits, expected)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer("the cat 12").input_ids == load_policy(folder).tokenizer("the cat 12").input_ids
        assert not list(folder.rglob("*.gguf"))
    weights = [make(steps, made) / "base/model.safetensors" for made in (first, second)]
    assert weights[0].samefile(weights[1])
    assert len(list(steps.layout.state.glob("cache/bases/*"))) == 1


def test_an_adapter_over_an_adapter_loads_over_the_base_as_it_was_in_training(steps, gguf):
    one, _ = steps.adapt("one", steps.receive(None, gguf), dtype="bfloat16")
    two, logits = steps.adapt("two", steps.receive(one), dtype="bfloat16", seed=2)
    folder = make(steps, two)
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    below = load_policy(complete_adapter(steps.folder(one), steps.layout), dtype="bfloat16")
    weights = base.state_dict()
    assert base.dtype == torch.bfloat16
    assert all(torch.equal(tensor, weights[name]) for name, tensor in below.model.state_dict().items())
    loaded = PeftModel.from_pretrained(base, folder).eval()(IDS).logits
    torch.testing.assert_close(loaded.float(), logits.float(), atol=0.02, rtol=0.02)  # bfloat16 has 8 bits


def test_a_model_that_transformers_loads_is_not_converted(steps, tiny_policy_folder):
    base = steps.make_base(tiny_policy_folder)
    made, _ = steps.adapt("one", steps.receive(base))
    for folder in (complete_adapter(steps.folder(made), steps.layout), steps.folder(base)):
        assert make_plain(folder, steps.layout) == folder
    assert not (steps.layout.state / "cache/bases").exists()


def test_a_converted_base_goes_with_its_last_adapter(steps, gguf):
    first, _ = steps.adapt("one", steps.receive(None, gguf))
    second, logits = steps.adapt("two", steps.receive(None, gguf), seed=2)
    whole = make(steps, second)
    (base,) = steps.layout.state.glob("cache/bases/*")
    under_way, left = base.with_name(".new"), base.with_name(".old")
    for folder in (under_way, left):
        folder.mkdir()
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    assert list(find_unneeded_bases(steps.layout, [steps.folder(first)])) == [left]
    assert set(find_unneeded_bases(steps.layout, [])) == {base, left}
    garbage = find_garbage(steps.layout, Policy(last=10)).garbage  # no run has made any of them
    assert set(garbage.bases) == {base, left}
    assert base in garbage.paths
    make_plain(complete_adapter(steps.folder(second), steps.layout), steps.layout)
    close(AutoModelForCausalLM.from_pretrained(whole).eval()(IDS).logits, logits)
