import json

import pytest
import torch
from pydantic import ValidationError

from learning.data.chat import decode
from learning.data.rows import write_rows
from learning.models.added_tokens import extend_vocabulary
from learning.models.policy import load_policy, save_policy
from schemas.errors import StepError
from schemas.stages.init import Init
from tasks.context import Context
from tasks.init import run
from tests.learning.models.test_gguf import IDS, make_policy


def made(stage, inputs, tmp_path):
    return run(
        stage, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0)
    ), tmp_path / "out/outputs/model"


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_the_mean_and_old_logits_stay(tied):
    policy = make_policy("llama", vocab_size=277, tie_word_embeddings=tied)
    with torch.no_grad():
        before = policy.model(IDS).logits
    rows = policy.model.get_input_embeddings().weight.detach().clone()
    extend_vocabulary(policy, ["<think>", "hmm"])
    assert policy.tokenizer.convert_tokens_to_ids(["<think>", "hmm"]) == [277, 278]
    assert policy.model.config.vocab_size == 279
    embeddings = policy.model.get_input_embeddings().weight
    assert torch.equal(embeddings[:277], rows)
    torch.testing.assert_close(embeddings[277:], rows.mean(0).expand(2, -1))
    with torch.no_grad():
        assert torch.equal(policy.model(IDS).logits[..., :277], before)
    assert (policy.model.lm_head.weight is embeddings) == tied
    ids = policy.tokenizer.encode("the <think>cat hmm")
    assert {277, 278} <= set(ids)
    assert decode(policy.tokenizer, ids) == "the <think>cat hmm"


def test_spare_rows_are_used_before_the_matrix_grows():
    policy = make_policy("qwen3")
    extend_vocabulary(policy, ["<think>"])
    weight = policy.model.get_input_embeddings().weight
    assert weight.shape[0] == 320
    torch.testing.assert_close(weight[277], weight[:277].mean(0))


@pytest.mark.parametrize("texts", [[""], ["<eos>"], ["new", "new"]])
def test_what_is_no_new_token_is_refused(texts):
    with pytest.raises(StepError, match="added_tokens"):
        extend_vocabulary(make_policy("llama"), texts)


def test_a_stage_adds_tokens_to_a_model_in_its_precision(tmp_path):
    policy = make_policy("llama", vocab_size=277)
    policy.model.to(torch.bfloat16)
    save_policy(policy, tmp_path / "model")
    stage = Init(kind="init", model="path:model", added_tokens=["<think>"])
    result, folder = made(stage, {"model": tmp_path / "model"}, tmp_path)
    assert result.metrics["vocabulary"] == 278
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_policy(folder).tokenizer.encode("<think>") == [277]


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "path:x"},
        {"model": "path:x", "added_tokens": ["a"], "max_length": 64},
        {"model": "path:x", "added_tokens": ["a"], "tokenizer": "characters"},
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys):
    with pytest.raises(ValidationError):
        Init(kind="init", **keys)


def test_a_new_model_has_a_trained_tokenizer_with_added_tokens(tmp_path):
    row = {"id": "1", "prompt": [{"role": "user", "content": "cats and mats"}], "answer": None}
    (tmp_path / "rows").mkdir()
    write_rows(tmp_path / "rows", "prompts", [row | {"family": "x", "metadata": None}])
    sizes = {"model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "intermediate_size": 24}
    stage = Init(
        kind="init", config=sizes, tokenizer={"use": "bpe", "data": "rows", "vocab_size": 300}, added_tokens=["<tool>"]
    )
    result, folder = made(stage, {"tokenizer.data": tmp_path / "rows"}, tmp_path)
    policy = load_policy(folder)
    assert policy.tokenizer.decode(policy.tokenizer.encode("mats <tool> sät")) == "mats <tool> sät"
    assert policy.model.config.vocab_size == len(policy.tokenizer) == result.metrics["vocabulary"]


def test_a_tokenizer_comes_from_a_model(tmp_path):
    save_policy(make_policy("qwen2"), tmp_path / "model")
    sizes = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    stage = Init(kind="init", config=sizes | {"intermediate_size": 24}, tokenizer="path:model", max_length=64)
    assert stage.tokenizer.options == {"source": "path:model"}
    _, folder = made(stage, {"tokenizer.source": tmp_path / "model"}, tmp_path)
    policy = load_policy(folder)
    text = "the cat sät <eos>"
    assert policy.tokenizer.encode(text) == make_policy("qwen2").tokenizer.encode(text)
    assert policy.max_length == 64


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(StepError, match="model has no tokenizer"):
        made(Init(kind="init", tokenizer="path:model"), {"tokenizer.source": tmp_path / "model"}, tmp_path)
