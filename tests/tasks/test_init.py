import json

import pytest
import torch
from safetensors.torch import load_file

from learning.data.chat import decode
from learning.data.examples import Example
from learning.models.crossentropy import compute_packed_loss, compute_padded_loss
from learning.models.policy import load_policy
from schemas.errors import StepError
from schemas.stages.init import Init
from tasks.context import Context
from tasks.init import run

TINY = {"model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
SHAPES = {
    "qwen3": {**TINY, "num_key_value_heads": 1, "intermediate_size": 24, "tie_word_embeddings": True},
    "llama": {**TINY, "model_type": "llama", "num_key_value_heads": 2, "intermediate_size": 24},
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2},
    "gpt_neox": {**TINY, "model_type": "gpt_neox", "intermediate_size": 24},
}
del SHAPES["gpt_neox"]["head_dim"]


@pytest.fixture
def make(tmp_path):
    def made(name="a", seed=0, max_length=32, tokenizer="characters", **config):
        folder = tmp_path / name
        folder.mkdir()
        stage = Init(kind="init", config=config, max_length=max_length, tokenizer=tokenizer)
        result = run(stage, Context({}, folder, tmp_path / "checkpoints", seed=seed))
        return result, folder / "outputs" / "model"

    return made


def files(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_equal_seeds_give_equal_bytes_and_others_do_not(make):
    one, same, other = (make(name, seed, **SHAPES["qwen3"])[1] for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert files(one) == files(same)
    assert {n for n in files(one) if files(one)[n] != files(other)[n]} == {"model.safetensors"}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_an_architecture_by_its_configuration(make, shape):
    result, folder = make(**SHAPES[shape])
    policy = load_policy(folder)
    weights = load_file(folder / "model.safetensors")
    assert result.metrics["parameters"] == sum(p.numel() for p in policy.model.parameters())
    assert sum(t.numel() for t in weights.values()) == result.metrics["parameters"]
    assert {t.dtype for t in weights.values()} == {torch.float32}
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == result.metrics["vocabulary"] == len(policy.tokenizer)
    assert (config["eos_token_id"], config["pad_token_id"]) == (1, 0)
    assert not any(config.get(name) for name in config if "drop" in name)
    assert policy.max_length == policy.tokenizer.model_max_length == 32
    rows = [Example([7, 8, 9, 10, 11], 2), Example([12, 13, 14], 1)]
    packed, padded = (float(loss(policy.model, rows).detach()) for loss in (compute_packed_loss, compute_padded_loss))
    assert packed == pytest.approx(padded, abs=1e-5)


def test_the_longest_sequence_is_what_the_stage_says(make):
    _, folder = make(max_length=16, **SHAPES["qwen3"], max_position_embeddings=64)
    assert load_policy(folder).max_length == 16
    with pytest.raises(StepError, match=r"max_position_embeddings is less than max_length .16"):
        make("b", max_length=16, **SHAPES["qwen3"], max_position_embeddings=8)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "qwen33"}, "'qwen33' is not a causal language model; did you mean `qwen3`"),
        ({"hidden_size": 16}, "config.model_type: `model_type` is missing"),
        ({"model_type": "bert_score"}, "is not a causal language model"),
        ({"model_type": "bert"}, "model_type: a bert model attends to later tokens .*`is_decoder: true`"),
        ({"model_type": "gemma3"}, "gemma3 is multimodal; name its text model, `gemma3_text`"),
        ({**SHAPES["qwen3"], "hidden_sise": 16}, "hidden_sise: qwen3 has no such .* `hidden_size`"),
        ({**SHAPES["qwen3"], "hidden_size": "big"}, "hidden_size"),
        ({**SHAPES["llama"], "hidden_size": 15, "num_attention_heads": 4}, "hidden size"),
        ({**SHAPES["qwen3"], "attention_dropout": 0.1}, "attention_dropout: dropout makes training and sampling"),
        ({**SHAPES["gpt2"], "attn_pdrop": 0.1}, "attn_pdrop: dropout makes training and sampling"),
        ({**SHAPES["qwen3"], "vocab_size": 7}, "vocab_size is 102 in the tokenizer, not 7"),
        ({**SHAPES["qwen3"], "hidden_act": "sillu"}, "sillu"),
        ({"model_type": "qwen3", "num_attention_heads": 4}, "num_key_value_heads: 32 does not divide"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_with_advice(make, config, message):
    with pytest.raises(StepError, match=message):
        make(**config)


def test_a_tokenizer_of_few_characters(make):
    result, folder = make(tokenizer={"use": "characters", "alphabet": "0123456789+= "}, **SHAPES["qwen3"])
    tokenizer = load_policy(folder).tokenizer
    assert result.metrics["vocabulary"] == 13 + 6
    assert decode(tokenizer, tokenizer.encode("1+1 = 2")) == "1+1 = 2"
    assert tokenizer.encode("a")[0] == tokenizer.unk_token_id
    with pytest.raises(StepError, match=r"repeated character\(s\) \['0'\]"):
        make("b", tokenizer={"use": "characters", "alphabet": "0120"}, **SHAPES["qwen3"])
