"""The tokens with a loss, after an import, are those of axolotl 0.19 and LLaMA-Factory 0.9.5.

`masks_of_tools.py` has written what their own code makes of the same conversations.
"""

import json
from itertools import groupby

import pytest
import yaml

from learning.data.turns import encode_conversation
from schemas.errors import StepError
from schemas.importers.convert import import_config
from schemas.recipe.load import load_recipe
from tests.learning.data import masks_of_tools
from tests.learning.data.masks_of_tools import make_factory_tokenizer, split_by_loss, write_messages
from tests.learning.data.template_families import FAMILIES, make_tokenizer

AXOLOTL = {"base_model": "org/name", "datasets": [{"path": "a.jsonl", "type": "chat_template"}]}
FACTORY = {"model_name_or_path": "org/name", "stage": "sft", "do_train": True, "dataset": "a", "dataset_dir": "."}
CASES = [
    # roles_to_train: the assistant's turns, and train_on_eos: turn, are axolotl's defaults for `type: chat_template`.
    ("axolotl", AXOLOTL, ["It is 4.", "6."]),
    # LLaMA-Factory computes the loss on every response, with mask_history on the last one only.
    ("llama-factory", FACTORY, ["It is 4.", "6."]),
    ("llama-factory", FACTORY | {"mask_history": True}, ["6."]),
]
# axolotl computes the loss on the content of a message and on the token that ends a sequence. posttrain computes it on
# all that the model has to write, as TRL does: also on what these templates write around the content.
AROUND_CONTENT = {
    "qwen 3": {"<think>\n\n</think>\n\n"},
    "mistral": {" "},
    "harmony": {"<|channel|>final<|message|>", "<|end|>"},
}
GOLDEN = json.loads(masks_of_tools.GOLDEN.read_text())


def name_row(row):
    return " ".join(str(row[key]) for key in ("name", "conversation", "last_only", "marked") if key in row)


@pytest.mark.parametrize("family", ["chatml", "llama 3"])
@pytest.mark.parametrize(("tool", "config", "learned"), CASES)
def test_the_loss_covers_what_the_tool_documents(family, tool, config, learned, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = import_config([tmp_path / "config.json"], tool, tmp_path / "recipe.yaml")
    stage = yaml.safe_load(made.text)["stages"]["sft"]
    tokenizer = make_tokenizer(family)
    turns = [("user", "2+2?"), ("assistant", "It is 4."), ("user", "3+3?"), ("assistant", "6.")]
    *prompt, last = [{"role": role, "content": text} for role, text in turns]
    encoded = encode_conversation(tokenizer, prompt, [last], train_on=stage.get("train_on", "last"))
    ids = [token for token, has_loss in zip(encoded.ids, encoded.learned, strict=True) if has_loss]
    assert tokenizer.decode(ids) == "".join(f"{text}{FAMILIES[family].end}" for text in learned)


def convert(config, tool, folder):
    """The stage that a configuration becomes."""
    (folder / "config.json").write_text(json.dumps(config))
    made = import_config([folder / "config.json"], tool, folder / "recipe.yaml")
    (folder / "recipe.yaml").write_text(made.text)
    load_recipe(folder / "recipe.yaml")
    return yaml.safe_load(made.text)["stages"]["sft"]


@pytest.mark.parametrize("row", GOLDEN["llama-factory"], ids=name_row)
def test_templates_of_llama_factory_keep_text_and_loss(row, tmp_path):
    stage = convert(FACTORY | {"template": row["name"], "mask_history": row["last_only"]}, "llama-factory", tmp_path)
    tokenizer = make_factory_tokenizer()
    tokenizer.chat_template = stage["chat_template"]
    assert encode_in_parts(tokenizer, write_messages(row["conversation"]), stage) == row["parts"]


@pytest.mark.parametrize("row", GOLDEN["axolotl"], ids=name_row)
def test_conversations_have_the_loss_of_axolotl(row, tmp_path):
    data = {"path": "a.jsonl", "type": "chat_template"}
    data |= {"message_field_training": "train"} if row["marked"] else {}
    stage = convert(AXOLOTL | {"datasets": [data]}, "axolotl", tmp_path)
    messages = write_messages(row["conversation"], only_first=row["marked"])
    parts = encode_in_parts(make_tokenizer(row["name"]), messages, stage)
    assert find_further_loss(parts, row["parts"]) <= AROUND_CONTENT.get(row["name"], set())


def encode_in_parts(tokenizer, messages, stage):
    """The text of a conversation that a stage trains on, in parts of equal loss."""
    encoded = encode_conversation(tokenizer, messages[:-1], messages[-1:], train_on=stage.get("train_on", "last"))
    return split_by_loss(tokenizer, encoded.ids, encoded.learned)


def find_further_loss(ours, theirs):
    """The pieces of one text that have a loss in the first parts and none in the second; none may be the other way."""
    pairs = [[(sign, has_loss) for text, has_loss in parts for sign in text] for parts in (ours, theirs)]
    assert [sign for sign, _ in pairs[0]] == [sign for sign, _ in pairs[1]]
    both = [(sign, mine, other) for (sign, mine), (_, other) in zip(*pairs, strict=True)]
    assert not [sign for sign, mine, other in both if other and not mine]
    runs = groupby(both, key=lambda triple: triple[1] and not triple[2])
    return {"".join(sign for sign, _, _ in run) for further, run in runs if further}


def test_a_template_of_llama_factory_refuses_what_it_has_no_place_for(tmp_path):
    tokenizer = make_factory_tokenizer()
    tokenizer.chat_template = convert(FACTORY | {"template": "chatml"}, "llama-factory", tmp_path)["chat_template"]
    prompt = [{"role": "user", "content": "2+2?"}, {"role": "tool", "content": "4"}]
    with pytest.raises(StepError, match="no place for the role tool"):
        encode_conversation(tokenizer, prompt, [{"role": "assistant", "content": "4"}], train_on="all")


def test_rows_of_alpaca_alone_have_its_own_prompts(tmp_path):
    stage = convert(AXOLOTL | {"datasets": [{"path": "a.jsonl", "type": "alpaca"}]}, "axolotl", tmp_path)
    assert (stage["data"]["format"], stage["chat_template"]) == ("alpaca", "alpaca")


def test_prompts_of_alpaca_with_chats_beside_them_use_the_template_of_the_model(tmp_path):
    data = {"datasets": [{"path": "a.jsonl", "type": "alpaca"}, {"path": "b.jsonl", "type": "chat_template"}]}
    stage = convert(AXOLOTL | data, "axolotl", tmp_path)
    assert [source["format"] for source in stage["data"]] == ["alpaca", "messages"]
    assert "chat_template" not in stage
