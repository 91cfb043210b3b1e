"""A contract compares what tokenizers do, not how their files are written."""

import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from learning.data.chat_settings import apply_chat
from learning.models.policy import save_tokenizer
from lineage.artifacts.contract import find_disagreement, override_contract, read_contract
from schemas.chat import Chat


def trained(vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = ["low lower lowest", "new newer newest wide wider"] * 5
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=["<eos>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", chat_template="{{ messages }}")


def test_old_and_new_forms_of_merges_are_one_tokenizer(tmp_path):
    trained(60).save_pretrained(tmp_path / "published")
    file = tmp_path / "published" / "tokenizer.json"
    content = json.loads(file.read_text())
    assert content["model"]["merges"]
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    for default in ("ignore_merges", "dropout", "byte_fallback"):
        content["model"].pop(default, None)
    file.write_text(json.dumps(content))
    loaded = AutoTokenizer.from_pretrained(tmp_path / "published", local_files_only=True)
    loaded.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    assert isinstance(saved["model"]["merges"][0], list)
    assert find_disagreement(read_contract(tmp_path / "published"), read_contract(tmp_path / "saved")) is None


def test_other_merges_are_another_tokenizer(tmp_path):
    trained(60).save_pretrained(tmp_path / "one")
    trained(30).save_pretrained(tmp_path / "other")
    assert find_disagreement(read_contract(tmp_path / "one"), read_contract(tmp_path / "other")).startswith(
        "tokenizers differ"
    )


def test_order_and_defaults_of_fields_are_no_difference(tmp_path):
    trained(60).save_pretrained(tmp_path / "one")
    trained(60).save_pretrained(tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"] = dict(reversed(content["model"].items()))
    file.write_text(json.dumps(dict(reversed(content.items()))))
    assert find_disagreement(read_contract(tmp_path / "one"), read_contract(tmp_path / "other")) is None


def test_other_stop_ids_are_another_model(tmp_path):
    for name, named in {"one": 2, "same": [2], "more": [2, 0], "turned": [0, 2], "unknown": None}.items():
        trained(60).save_pretrained(tmp_path / name)
        if named is not None:
            (tmp_path / name / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    contracts = {name: read_contract(tmp_path / name) for name in ("one", "same", "more", "turned", "unknown")}
    assert find_disagreement(contracts["one"], contracts["same"]) is None
    assert find_disagreement(contracts["more"], contracts["turned"]) is None
    assert find_disagreement(contracts["one"], contracts["unknown"]) is None
    assert (
        find_disagreement(contracts["one"], contracts["more"])
        == "eos_token_id of generation_config.json differ ([2] and [0, 2])"
    )


def test_other_chat_settings_are_another_model_unless_the_stage_sets_them(tmp_path):
    for name, chat in {"plain": Chat(), "quiet": Chat(chat_template_kwargs={"enable_thinking": False})}.items():
        tokenizer = trained(60)
        apply_chat(tokenizer, chat)
        save_tokenizer(tokenizer, tmp_path / name)
    plain, quiet = (read_contract(tmp_path / name) for name in ("plain", "quiet"))
    assert plain.chat == {}
    problem = find_disagreement(plain, quiet)
    assert problem.startswith('chat settings differ: `chat_template_kwargs` is null and {"enable_thinking": false}; ')
    for kwargs in ({}, {"enable_thinking": True}):
        stage = {"chat_template_kwargs": kwargs, "chat_template": "{{ messages }}!", "lr": 1}
        one, other = override_contract(plain, stage), override_contract(quiet, stage)
        assert find_disagreement(one, other) is None
        assert one.chat_template != plain.chat_template


def test_other_added_tokens_are_another_tokenizer(tmp_path):
    trained(60).save_pretrained(tmp_path / "one")
    more = trained(60)
    more.add_tokens(["<think>"])
    more.save_pretrained(tmp_path / "other")
    problem = find_disagreement(read_contract(tmp_path / "one"), read_contract(tmp_path / "other"))
    assert problem.startswith("tokenizers differ")
