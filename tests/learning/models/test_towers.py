"""Multimodal checkpoints that were trained on text are saved with their towers and processors."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)

from learning.data.tokenizers import characters
from learning.models.adapters import attach_adapters
from learning.models.policy import load_policy, save_policy
from learning.models.weights import Weights
from schemas.training import LoRA

TEXT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "layer_types": ["full_attention"] * 2,
}
VISION = {"hidden_size": 16, "intermediate_size": 32, "patch_size": 14}
TOWERS = {
    "qwen3_5": {**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16},
    "gemma3": {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
    "llama4": {
        **VISION,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 16),
    },
}
"""Loaded by transformers as a text model; loaded with its tower."""
MORE = {
    "qwen3_5": {"tie_word_embeddings": False},
    "gemma3": {"mm_tokens_per_image": 4, "image_token_index": 60},
    "llama4": {},
}
TEXT_ALONE = {"llama4": {"num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 16}}
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed


def make_config(kind, **more):
    return CONFIG_MAPPING[kind](
        text_config=TEXT | TEXT_ALONE.get(kind, {}), vision_config=TOWERS[kind], **MORE[kind], **more
    )


@pytest.fixture(params=TOWERS)
def checkpoint(request, tmp_path):
    """A folder with a tiny multimodal checkpoint, and its type."""
    torch.manual_seed(0)
    kind = request.param
    config = make_config(kind)
    folder = tmp_path / "checkpoint"
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    characters().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 28}\n')
    return folder, kind


def read_all(folder):
    weights = Weights(folder)
    return {name: weights.read(name) for name in weights.entries}


def test_a_trained_text_model_is_saved_with_its_tower(checkpoint, tmp_path):
    (folder, kind), saved = checkpoint, tmp_path / "saved"
    policy = load_policy(folder)
    embedding = policy.model.get_input_embeddings().weight
    with torch.no_grad():
        embedding += 1
    save_policy(policy, saved)
    before, after = load_file(folder / "model.safetensors"), read_all(saved)
    assert before.keys() == after.keys()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    names = {
        "qwen3_5": "model.language_model.embed_tokens.weight",
        "gemma3": "language_model.model.embed_tokens.weight",
        "llama4": "language_model.model.embed_tokens.weight",
    }
    assert changed == {names[kind]}
    assert any("vis" in name for name in before.keys() - changed)
    assert (saved / "preprocessor_config.json").read_text() == '{"size": 28}\n'
    whole, info = AutoModelForImageTextToText.from_pretrained(saved, output_loading_info=True)
    assert whole.config.model_type == kind
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(whole.get_input_embeddings().weight, embedding)


def test_a_saved_checkpoint_is_a_text_model_again_with_equal_bytes(checkpoint, tmp_path):
    folder, _ = checkpoint
    save_policy(load_policy(folder), tmp_path / "once")
    save_policy(load_policy(tmp_path / "once"), tmp_path / "twice")
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("once", "twice")]
    assert files[0] == files[1]


WITH_TOWERS = {
    "gemma3": AutoModelForCausalLM,
    "gemma3-classifier": AutoModelForSequenceClassification,
    "qwen3_5-classifier": AutoModelForSequenceClassification,
}
"""Classes whose model has its vision tower even if it is trained on text."""


@pytest.mark.parametrize("case", WITH_TOWERS)
def test_all_linear_adapts_the_language_part_alone(case):
    """Each adapter has a gradient from text alone; the tower, which text does not reach, has no adapters."""
    torch.manual_seed(0)
    model = WITH_TOWERS[case].from_config(make_config(case.partition("-")[0], num_labels=1))
    assert any("vis" in name for name, _ in model.named_parameters())
    adapted = attach_adapters(model, LoRA(use_peft=True, lora_r=2))
    output = adapted(torch.tensor([[5, 6, 7, 8]])).logits.double().pow(2).sum()
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(output, list(trained.values()))
    starts = {name for name in trained if ".lora_B." in name}
    ends = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in starts} == ends
    assert len(starts) == 2 * len(ends)
    for name, gradient in zip(trained, gradients, strict=True):
        assert ".lora_A." in name or bool(gradient.any()), name


def test_a_tower_that_the_recipe_names_gets_adapters():
    model = AutoModelForCausalLM.from_config(make_config("gemma3"))
    adapted = attach_adapters(model, LoRA(use_peft=True, lora_r=2, lora_target_modules=r".*\.(fc1|gate_proj)"))
    places = {name.split(".layers.")[0] for name, _ in adapted.named_parameters() if ".lora_A." in name}
    assert len(places) == 3  # layers of the text model and of the tower, and the tower's head


def test_a_checkpoint_in_several_files_keeps_its_names_and_its_tower(tmp_path):
    """The text model of Llama 4 has its tensors under other names than the checkpoint, in memory and in its files."""
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(make_config("llama4")).save_pretrained(tmp_path / "checkpoint")
    characters().save_pretrained(tmp_path / "checkpoint")
    save_policy(load_policy(tmp_path / "checkpoint"), tmp_path / "saved", "40KB")
    assert len({entry.file for entry in Weights(tmp_path / "saved").entries.values()}) > 2
    before, after = read_all(tmp_path / "checkpoint"), read_all(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
