"""A contract compares what tokenizers do, not how their files are written."""

import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lineage.artifacts.contract import find_disagreement, read_contract


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
