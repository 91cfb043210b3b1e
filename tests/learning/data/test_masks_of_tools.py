"""The tokens with a loss, after an import, are those that axolotl and LLaMA-Factory document for their masks."""

import json

import pytest
import yaml

from learning.data.turns import encode_conversation
from schemas.importers.convert import import_config
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
