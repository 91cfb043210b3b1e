"""Multimodal checkpoints that were trained on text are saved with their towers and processors."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from learning.data.tokenizers import characters
from learning.models.policy import load_policy, save_policy
from learning.models.weights import Weights

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
}
"""Loaded by transformers as a text model; loaded with its tower."""
MORE = {"qwen3_5": {"tie_word_embeddings": False}, "gemma3": {"mm_tokens_per_image": 4, "image_token_index": 60}}
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of kernels that are not installed


@pytest.fixture(params=TOWERS)
def checkpoint(request, tmp_path):
    """A folder with a tiny multimodal checkpoint, and its type."""
    torch.manual_seed(0)
    kind = request.param
    config = CONFIG_MAPPING[kind](text_config=TEXT, vision_config=TOWERS[kind], **MORE[kind])
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
