"""Damaged files of a checkpoint, and files that do not belong together, are found by their headers alone."""

import json
import shutil
import struct

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import save_file

from flows.planning.checkpoint_files import find_damaged_file
from learning.models.gguf_header import find_gguf_problem

Q, V = "model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.v_proj"
CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture
def adapter(tiny_policy_folder, tmp_path):
    """Return a function that writes an adapter over a tiny model and returns its problem."""
    from safetensors.torch import load_file

    weights = load_file(tiny_policy_folder / "model.safetensors")

    def write(change=None, **config):
        folder = tmp_path / "adapter"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny_policy_folder, folder / "base")
        (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
        matrices = {}
        for module in (Q.format(0), V.format(1)):
            rows, columns = weights[f"{module}.weight"].shape
            matrices[f"base_model.model.{module}.lora_A.weight"] = torch.zeros(4, columns)
            matrices[f"base_model.model.{module}.lora_B.weight"] = torch.zeros(rows, 4)
        if change is not None:
            change(matrices)
        save_file(matrices, folder / "adapter_model.safetensors")
        return find_damaged_file(folder)

    return write


def test_an_adapter_that_fits_its_base_has_no_problem(adapter):
    assert adapter() is None
    assert adapter(rank_pattern={"q_proj": 4}, r=8) is None


def test_an_adapter_of_another_base_is_told_by_its_shapes(adapter):
    name = f"base_model.model.{Q.format(0)}.lora_A.weight"
    problem = adapter(lambda matrices: matrices.update({name: torch.zeros(4, 7)}))
    assert problem.startswith(
        "adapter_model.safetensors is for another base: its matrices for model.layers.0.self_attn"
    )
    assert " x 7, the weights are " in problem


def test_an_adapter_of_a_deeper_base_is_told_by_its_layers(adapter):
    def deepen(matrices):
        for side, shape in (("A", (4, 96)), ("B", (96, 4))):
            matrices[f"base_model.model.{Q.format(40)}.lora_{side}.weight"] = torch.zeros(shape)

    assert adapter(deepen).endswith("it adapts model.layers.40.self_attn.q_proj, which this one does not have")


def test_a_matrix_without_its_pair_is_named(adapter):
    problem = adapter(lambda matrices: matrices.pop(f"base_model.model.{V.format(1)}.lora_B.weight"))
    assert problem == f"adapter_model.safetensors has no lora_B for {V.format(1)}; save the adapter again"


def test_modules_that_files_name_otherwise_are_not_judged(adapter):
    def add_experts(matrices):
        for side, shape in (("A", (4, 96)), ("B", (96, 4))):
            matrices[f"base_model.model.model.layers.0.mlp.experts.gate.lora_{side}.weight"] = torch.zeros(shape)

    assert adapter(add_experts) is None


def test_ranks_that_differ_from_the_configuration_are_named(adapter):
    assert "have the ranks 4 and 4, adapter_config.json says r: 8" in adapter(r=8)


TEMPLATES = {
    "{{ frobnicate(messages) }}": "line 1: `frobnicate` is no function of chat templates",
    "hello": "it never reads `messages`",
    "{% for m in messages %}{{ m.content | nofilter }}{% endfor %}": "No filter named 'nofilter'",
    "{% macro say(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}": None,
    "{% set ns = namespace(x=1) %}{{ raise_exception('no') if not messages }}{{ strftime_now('%d') }}": None,
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% if true %}{% break %}{% endif %}"
    "{% endfor %}": None,
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_that_no_conversation_can_be_written_with_is_named(template, tiny_policy_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_policy_folder, folder)
    (folder / "chat_template.jinja").write_text(template)
    problem, expected = find_damaged_file(folder), TEMPLATES[template]
    assert problem is None if expected is None else expected in problem


@pytest.fixture
def gguf(tmp_path):
    """Return a GGUF file with texts, arrays and three tensors."""
    file = tmp_path / "model.gguf"
    writer = GGUFWriter(file, "llama")
    writer.add_token_list([f"token {i}" for i in range(500)])
    writer.add_token_types([1] * 500)
    writer.add_float32("llama.rope.freq_base", 1e4)
    for name in "abc":
        writer.add_tensor(name, np.ones((40, 50), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_file_that_is_cut_off_anywhere_is_refused(gguf):
    assert find_gguf_problem(gguf) is None
    whole = gguf.read_bytes()
    for size in (3, 4, 11, 30, 200, 5000, len(whole) - 3 * 8000, len(whole) - 8100):
        gguf.write_bytes(whole[:size])
        assert "cut off" in find_gguf_problem(gguf), size


def test_a_header_that_promises_too_much_ends(gguf):
    content = bytearray(gguf.read_bytes())
    content[8:24] = struct.pack("<QQ", 2**63, 2**63)
    gguf.write_bytes(content)
    assert "its header cannot be read" in find_gguf_problem(gguf)
