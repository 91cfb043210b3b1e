"""GGUF files: written from model folders, read back, and refused where something would be lost."""

from contextlib import nullcontext

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

from learning.models import gguf as gguf_module
from learning.models.gguf_reading import PlainReader
from learning.models.gguf_tokenizer import NFC, SPLITS
from learning.models.gguf_writing import refuse_inexact, write_gguf
from learning.models.policy import Policy, find_gguf, load_outline, load_policy, save_policy
from schemas.errors import StepError

build = gguf.GGUFReader._build_tensors
IDS = torch.arange(5, 45)[None]
TEMPLATE = "{% for m in messages %}{{ m['content'] + '<eos>' }}{% endfor %}"
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
}
OWN = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}


def byte_level(split=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat, the end of 12 cats"] * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )


def make_policy(kind, **more):
    tokenizer = byte_level()
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{"vocab_size": 320, **SIZES, **ids, **OWN[kind], **more})
    return Policy(AutoModelForCausalLM.from_config(config).float().eval(), tokenizer, 128)


def exported(tmp_path, policy, kind="f32"):
    save_policy(policy, tmp_path / "model")
    (tmp_path / "gguf").mkdir()
    counted = write_gguf(tmp_path / "model", tmp_path / "gguf" / "m.gguf", kind, "tiny")
    return tmp_path / "gguf", counted


@pytest.mark.parametrize("kind", OWN)
def test_a_model_is_restored_bit_identical_from_f32(kind, tmp_path):
    policy = make_policy(kind)
    folder, _ = exported(tmp_path, policy)
    back = load_policy(folder)
    with torch.no_grad():
        assert torch.equal(back.model(IDS).logits, policy.model(IDS).logits)
    assert back.max_length == 128
    assert back.model.config.tie_word_embeddings == policy.model.config.tie_word_embeddings
    text = "the cat <eos> sät on 12\n mats"
    assert back.tokenizer.encode(text) == policy.tokenizer.encode(text)
    assert back.tokenizer.chat_template == TEMPLATE
    assert (back.tokenizer.eos_token_id, back.tokenizer.pad_token_id) == (1, 0)


@pytest.mark.parametrize("kind", OWN)
def test_reading_quickly_changes_no_value_and_asks_for_names_once(kind, tmp_path, monkeypatch):
    """Without it transformers asks for the names of all tensors once for each of a model's modules."""
    folder, _ = exported(tmp_path, make_policy(kind), "q8_0")
    asked, opened, names = [], [], gguf.get_tensor_name_map
    monkeypatch.setattr(gguf, "get_tensor_name_map", lambda *words: asked.append(words) or names(*words))
    monkeypatch.setattr(PlainReader, "_build_tensors", lambda self, *words: opened.append(self) or build(self, *words))
    quick = load_policy(folder).model.state_dict()
    assert len(asked) == 1
    assert opened
    assert {type(reader.data) for reader in opened} == {np.ndarray}
    monkeypatch.setattr(gguf_module, "quick_reading", nullcontext)
    plain = load_policy(folder).model.state_dict()
    assert len(asked) > 10
    assert quick.keys() == plain.keys()
    assert all(torch.equal(quick[name], plain[name]) for name in quick)
    assert gguf.GGUFReader is not PlainReader


@pytest.mark.parametrize(("kind", "error"), [("f16", 2**-11), ("q8_0", 1 / 254)])
def test_weights_are_restored_within_the_precision_of_the_type(kind, error, tmp_path):
    policy = make_policy("llama")
    folder, counted = exported(tmp_path, policy, kind)
    assert counted["wider"] == 0
    back = load_policy(folder).model.state_dict()
    for name, tensor in policy.model.state_dict().items():
        if tensor.ndim == 1:
            assert torch.equal(back[name], tensor)
        elif kind == "f16":
            assert torch.equal(back[name], tensor.half().float())
        else:  # a block of 32 is rounded to 1/127 of its largest value, whose factor is f16
            block = tensor.view(-1, 32)
            largest = block.abs().amax(1, keepdim=True)
            assert ((back[name].view(-1, 32) - block).abs() <= largest * (error + 2**-11)).all()


def test_rows_that_blocks_do_not_divide_are_kept_in_f16_and_counted(tmp_path):
    policy = make_policy("llama", intermediate_size=80)
    _, counted = exported(tmp_path, policy, "q8_0")
    assert counted["wider"] == 2  # down_proj of two layers has rows of 80


def test_a_saved_model_does_not_remember_the_gguf_file(tmp_path):
    folder, _ = exported(tmp_path, make_policy("llama"), "q8_0")
    policy = load_policy(folder)
    save_policy(policy, tmp_path / "again")
    assert "quantization_config" not in (tmp_path / "again" / "config.json").read_text()
    again = load_policy(tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(again.model(IDS).logits, policy.model(IDS).logits)
    assert all(".gguf" not in file.read_text() for file in (tmp_path / "again").glob("*.json"))


def test_an_outline_is_read_from_a_gguf_file(tmp_path):
    folder, _ = exported(tmp_path, make_policy("qwen3"))
    outline = load_outline(folder)
    assert {p.device.type for p in outline.model.parameters()} == {"meta"}
    assert outline.model.config.head_dim == 32
    assert len(outline.tokenizer) == 320


@pytest.mark.parametrize("harm", ["cut", "text", "empty", "several"])
def test_what_is_no_gguf_file_is_refused(harm, tmp_path):
    folder, _ = exported(tmp_path, make_policy("llama"))
    file = folder / "m.gguf"
    content = file.read_bytes()
    file.write_bytes({"cut": content[: len(content) // 2], "text": b"hello" * 99, "empty": b""}.get(harm, content))
    if harm == "several":
        (folder / "n.gguf").write_bytes(content)
    with pytest.raises(StepError, match=r"gguf|GGUF"):
        load_policy(folder)


def test_a_file_with_tensors_that_transformers_leaves_out_is_refused(tmp_path):
    policy = make_policy("llama", attention_bias=True)
    torch.nn.init.normal_(policy.model.model.layers[0].self_attn.q_proj.bias)
    folder, _ = exported(tmp_path, policy)
    with pytest.raises(StepError, match="the model would not be the same"):
        load_policy(folder)


def test_scaled_rotary_embeddings_are_refused_both_ways(tmp_path):
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    with pytest.raises(StepError, match="rotary embeddings of type linear"):
        exported(tmp_path, make_policy("llama", rope_parameters=scaled))
    writer = gguf.GGUFWriter(tmp_path / "gguf" / "m.gguf", "llama")
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(StepError, match=r"scaling \(yarn\)"):
        load_policy(tmp_path / "gguf")


def test_other_architectures_and_tokenizers_are_refused_by_name(tmp_path, tiny_policy):
    with pytest.raises(StepError, match="WordLevel tokenizer cannot be written"):
        exported(tmp_path, tiny_policy)
    with pytest.raises(StepError, match="gpt2 cannot be written"):
        refuse_inexact({"model_type": "gpt2"})
    with pytest.raises(StepError, match="norm_topk_prob"):
        refuse_inexact({"model_type": "qwen3_moe", "norm_topk_prob": False})


def test_a_folder_with_config_is_no_gguf_model(tmp_path, tiny_policy_folder):
    (tiny_policy_folder / "x.gguf").write_bytes(b"")
    assert find_gguf(tiny_policy_folder) is None


def test_a_saved_tokenizer_is_not_replaced_by_that_of_its_architecture(tmp_path):
    policy = make_policy("qwen2")
    save_policy(policy, tmp_path / "model")
    text = "sät on 12 \u0041\u030a"
    assert load_policy(tmp_path / "model").tokenizer.encode(text) == policy.tokenizer.encode(text)


@pytest.mark.parametrize("name", SPLITS)
def test_every_named_split_is_returned(name, tmp_path):
    policy = make_policy("llama")
    policy.tokenizer = byte_level(SPLITS[name]())
    if name in NFC:
        policy.tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    folder, _ = exported(tmp_path, policy)
    back = load_policy(folder).tokenizer
    text = "The cat's 123 mats,  sät\n\n on A\u030a <eos> 4x"
    assert back.encode(text) == policy.tokenizer.encode(text)
    assert back.decode(back.encode(text)) == policy.tokenizer.decode(policy.tokenizer.encode(text))
