"""Missing and wrong-shaped tensors are found by headers alone, and nothing that loads is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from flows.planning.checkpoint_files import find_damaged_file
from flows.planning.expected_tensors import FAMILIES, expect_tensors
from flows.planning.stored_tensors import GGUF_FAMILIES, _rename_for_gguf, find_wrong_tensor
from learning.models.gguf_header import find_gguf_problem, read_gguf_tensors
from learning.models.policy import load_policy
from schemas.errors import StepError

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "pad_token_id": 0,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}
SWITCHES = ("attention_bias", "attention_out_bias", "conv_bias", "mlp_bias", "qkv_bias", "use_qk_norm")
OPTIONS = (
    {},
    {"head_dim": 16},
    {"num_key_value_heads": 4, "tie_word_embeddings": True, **dict.fromkeys(SWITCHES, True)},
    {"tie_word_embeddings": False, "decoder_sparse_step": 2, **dict.fromkeys(SWITCHES, False)},
    {"mlp_only_layers": [1], "layer_types": ["conv", "full_attention"], "conv_L_cache": 5},
)
NEEDED = {"ministral": {"head_dim": 8}}
"""What transformers cannot do without, though its class has no default."""
IMPOSSIBLE = {"olmoe": {"head_dim"}}
"""Options with which transformers makes models that cannot compute."""


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_expected_tensors_are_those_that_transformers_saves(family, tmp_path):
    for options in OPTIONS:
        if options.keys() & IMPOSSIBLE.get(family, set()):
            continue
        given = {k: v for k, v in options.items() if family == "lfm2" or k != "layer_types"}
        config = AutoConfig.for_model(family, **{**SMALL, **EXPERTS, **NEEDED.get(family, {}), **given})
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        with safe_open(tmp_path / "model.safetensors", "pt") as file:
            stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        expected = expect_tensors(json.loads((tmp_path / "config.json").read_text()))
        assert expected == {name.removeprefix("model."): shape for name, shape in stored.items()}, options
        assert find_wrong_tensor(tmp_path) is None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_defaults_are_those_of_transformers(family):
    """What a published configuration leaves out."""
    config = AutoConfig.for_model(family)
    assert all(getattr(config, key) == value for key, value in FAMILIES[family].defaults.items())
    switches = {"tie_word_embeddings", *FAMILIES[family].biases, *FAMILIES[family].optional} - {"always"}
    assert not any(getattr(config, key) for key in switches - FAMILIES[family].defaults.keys())
    if "head_dim" not in FAMILIES[family].defaults:
        derived = config.hidden_size // config.num_attention_heads
        assert getattr(config, "head_dim", None) in (None, derived)


def test_sizes_that_a_configuration_leaves_to_its_family_are_not_compared():
    shapes = expect_tensors({**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, "model_type": "mistral"})
    assert shapes["layers.0.self_attn.k_proj.weight"] == ()
    assert shapes["layers.0.self_attn.q_proj.weight"] == (32, 32)
    assert expect_tensors({**SMALL, "model_type": "deepseek_v3"}) == {}
    assert expect_tensors({**SMALL, "model_type": "llama", "num_hidden_layers": 10**9}) == {}
    assert expect_tensors({**SMALL, "model_type": "lfm2", "layer_types": ["conv"]}) == {}
    assert expect_tensors({**SMALL, "model_type": "lfm2", "layer_types": ["conv", "unknown"]}) == {}
    assert "layers.0.mlp.experts.0.up_proj.weight" not in expect_tensors({**SMALL, "model_type": "qwen3_moe"})


@pytest.fixture
def folder(tiny_policy_folder, tmp_path):
    """A copy of a tiny model."""
    shutil.copytree(tiny_policy_folder, tmp_path / "model")
    return tmp_path / "model"


def change(folder, edit):
    """Rewrite a model's weights by a function, and return its problem."""
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return find_damaged_file(folder)


UP = "model.layers.1.mlp.up_proj.weight"


def test_a_whole_checkpoint_has_no_problem(folder):
    assert change(folder, lambda weights: None) is None
    assert change(folder, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(3)})) is None
    assert change(folder, lambda w: w.update({"mtp.layers.0.extra.weight": torch.zeros(3)})) is None
    assert load_policy(folder).max_length == 128


def test_a_missing_tensor_is_named(folder):
    problem = change(folder, lambda weights: weights.pop(UP))
    assert problem == f"weights do not fit config.json: {UP} is missing; fetch or save the checkpoint again"
    with pytest.raises(StepError, match="weights do not fit config"):
        load_policy(folder)


def test_missing_layers_are_counted(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}))
    assert "(and 1" in find_damaged_file(folder)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.bias", "model.layers.7.mlp.up_proj.weight"])
def test_a_part_of_the_files_that_the_configuration_leaves_out_is_named(folder, name):
    """transformers would leave out the bias, or the layer, and compute other numbers."""
    problem = change(folder, lambda weights: weights.update({name: torch.zeros(3)}))
    assert problem.startswith(f"weights do not fit config.json: it makes a model without {name}; correct config.json")
    with pytest.raises(StepError, match=f"makes a model without {name}"):
        load_policy(folder)


def test_a_head_that_is_not_tied_must_be_there(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert "lm_head.weight is missing" in find_damaged_file(folder)
    with pytest.raises(StepError, match=r"1 differ, first lm_head\.weight"):
        load_policy(folder)
    head = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert change(folder, lambda weights: weights.update({"lm_head.weight": head.clone()})) is None
    assert "lm_head.weight is" in change(folder, lambda weights: weights.update({"lm_head.weight": head[:-1].clone()}))


def test_the_text_model_of_a_multimodal_checkpoint_is_compared_after_its_prefix(folder):
    text = {**SMALL, "model_type": "gemma3_text", "head_dim": 8}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    body = {f"language_model.model.{name}": torch.zeros(shape) for name, shape in expect_tensors(text).items()}
    towers = {"vision_tower.layers.5.q_proj.bias": torch.zeros(3)}
    save_file({**body, **towers}, folder / "model.safetensors")
    assert find_wrong_tensor(folder) is None
    name = "language_model.model.layers.0.mlp.up_proj.weight"
    del body[name]
    save_file({**body, **towers}, folder / "model.safetensors")
    assert f"{name} is missing" in find_wrong_tensor(folder)


def test_experts_under_the_names_of_memory_are_not_judged(folder):
    config = {**SMALL, **EXPERTS, "model_type": "qwen3_moe", "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    expected = expect_tensors(config)
    save_file(
        {f"model.{n}": torch.zeros(s) for n, s in expected.items() if ".up_" not in n}, folder / "model.safetensors"
    )
    assert "experts.0.up_proj.weight (and 7 more) is missing" in find_wrong_tensor(folder)
    joined = {f"model.{n}": torch.zeros(s) for n, s in expected.items() if ".experts." not in n}
    joined["model.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(4, 48, 32)
    save_file(joined, folder / "model.safetensors")
    assert find_wrong_tensor(folder) is None


def test_a_tensor_of_another_shape_is_named_with_both(folder):
    rows, columns = load_file(folder / "model.safetensors")[UP].shape
    problem = change(folder, lambda weights: weights.update({UP: torch.zeros(rows, columns + 1)}))
    assert f"{UP} is {rows} x {columns + 1}, and the configuration makes it {rows} x {columns}" in problem


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_a_number_in_quotes_is_named(folder, key):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: str(config[key])}))
    assert f"`{key}` is the text '{config[key]}', not a number" in find_damaged_file(folder)


def test_weights_without_the_prefix_of_the_body_and_tied_ones_under_the_other_name_are_whole(folder):
    def shorten(weights):
        for name in list(weights):
            weights[name.removeprefix("model.")] = weights.pop(name)

    assert change(folder, shorten) is None

    def rename(weights):
        weights["lm_head.weight"] = weights.pop("embed_tokens.weight")
        for name in list(weights):
            weights[name if name.startswith("lm_head") else f"model.{name}"] = weights.pop(name)

    assert change(folder, rename) is None


def test_quantised_weights_are_not_judged(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "bitsandbytes"}}))
    assert change(folder, lambda weights: weights.update({UP: torch.zeros(7, 1)})) is None


def test_shards_are_read_together_and_what_only_the_index_names_is_missing(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert find_damaged_file(folder) is None
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.9.weight"] = next(iter(index["weight_map"].values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_damaged_file(folder).startswith("the index names model.layers.9.weight, which no file of weights has")


def add_token(folder, content, **options):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer["added_tokens"].append({"id": size, "content": content, "special": False, **options})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return find_damaged_file(folder)


def test_added_tokens_beyond_the_embeddings_are_named_unless_no_text_contains_them(folder):
    assert add_token(folder, "<image_soft_token>", special=True) is None
    assert "resize the model" in add_token(folder, "<step>")


def test_a_special_token_of_the_template_needs_a_row(folder):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<turn>{{ m.content }}{% endfor %}")
    assert "the added token '<turn>' the id" in add_token(folder, "<turn>", special=True)


@pytest.fixture
def write_gguf_file(tmp_path):
    """Return a function that writes a small GGUF file, without one tensor or with another shape of it."""

    def write(family="llama", without=None, wider=None, **values):
        file = tmp_path / "gguf" / "model.gguf"
        file.parent.mkdir(exist_ok=True)
        writer = GGUFWriter(file, family)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(48)
        writer.add_block_count(2)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        if family == "qwen3":
            writer.add_key_length(8)
        for add, number in values.items():
            getattr(writer, add)(number)
        writer.add_token_list([f"token {i}" for i in range(40)])
        config = {**SMALL, "head_dim": 8, "model_type": family, "tie_word_embeddings": True}
        for name, shape in expect_tensors(config).items():
            own = _rename_for_gguf(name)
            if own != without:
                size = (*shape[:-1], shape[-1] + 1) if own == wider else shape
                writer.add_tensor(own, np.zeros(size, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return find_wrong_tensor(file.parent)

    return write


@pytest.mark.parametrize("family", sorted(GGUF_FAMILIES))
def test_tensors_of_gguf_files_are_compared_with_their_sizes(family, write_gguf_file):
    assert write_gguf_file(family) is None
    problem = write_gguf_file(family, without="blk.1.ffn_up.weight")
    assert problem.startswith("weights do not fit model.gguf: blk.1.ffn_up.weight is missing")
    problem = write_gguf_file(family, wider="blk.0.attn_k.weight")
    assert "blk.0.attn_k.weight is 16 x 33, and the configuration makes it 16 x 32" in problem
    assert write_gguf_file("llama", without="blk.1.ffn_up.weight", add_expert_count=4) is None


def test_the_header_of_a_gguf_file_is_read_without_a_library(tmp_path, write_gguf_file):
    write_gguf_file()
    file = tmp_path / "gguf" / "model.gguf"
    assert find_gguf_problem(file) is None
    values, tensors = read_gguf_tensors(file)
    assert (values["general.architecture"], values["llama.block_count"]) == ("llama", 2)
    assert tensors["blk.0.attn_k.weight"] == (32, 16)
