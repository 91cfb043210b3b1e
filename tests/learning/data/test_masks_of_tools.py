"""The tokens with a loss, after an import, are those that axolotl and LLaMA-Factory document for their masks."""

import json

import pytest
import yaml

from learning.data.turns import encode_conversation
from schemas.errors import StepError
from schemas.importers.convert import import_config
from schemas.recipe.load import load_recipe
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
START, END = "<|im_start|>", "<|im_end|>"
EOT = "<|eot_id|>"
# LLaMA-Factory's templates as lists of texts without and with a loss: a response has one with all that follows it.
TEMPLATES = {
    "chatml": [
        (f"{START}user\n2+2?{END}\n{START}assistant\n", f"It is 4.{END}\n"),
        (f"{START}user\n3+3?{END}\n{START}assistant\n", f"6.{END}\n"),
    ],
    "default": [("Human: 2+2?</s>\nAssistant:", "It is 4.</s>\n"), ("Human: 3+3?</s>\nAssistant:", "6.</s>\n")],
    "vicuna": [
        (
            "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
            "detailed, and polite answers to the user's questions.USER: 2+2? ASSISTANT:",
            "It is 4.</s>",
        ),
        ("USER: 3+3? ASSISTANT:", "6.</s>"),
    ],
    "alpaca": [
        (
            "Below is an instruction that describes a task. Write a response that appropriately completes the "
            "request.\n\n### Instruction:\n2+2?\n\n### Response:\n",
            "It is 4.</s>\n\n",
        ),
        ("### Instruction:\n3+3?\n\n### Response:\n", "6.</s>\n\n"),
    ],
    "llama3": [
        (
            f"<s><|start_header_id|>user<|end_header_id|>\n\n2+2?{EOT}"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            f"It is 4.{EOT}",
        ),
        (
            f"<|start_header_id|>user<|end_header_id|>\n\n3+3?{EOT}<|start_header_id|>assistant<|end_header_id|>\n\n",
            f"6.{EOT}",
        ),
    ],
}


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


def with_template(stage, begins):
    """A byte-level tokenizer with the chat template of a stage; sequences begin with `<s>` if the model's do."""
    tokenizer = make_tokenizer("chatml")
    special = [START, END, EOT, "<|start_header_id|>", "<|end_header_id|>"]
    ends = {"eos_token": "</s>", **({"bos_token": "<s>"} if begins else {})}
    tokenizer.add_special_tokens({**ends, "additional_special_tokens": special})
    tokenizer.chat_template = stage["chat_template"]
    return tokenizer


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("history", [False, True])
def test_templates_of_llama_factory_keep_text_and_loss(name, history, tmp_path):
    stage = convert(FACTORY | {"template": name, "mask_history": history}, "llama-factory", tmp_path)
    tokenizer = with_template(stage, begins=True)
    turns = [("user", "2+2?"), ("assistant", "It is 4."), ("user", "3+3?"), ("assistant", "6.")]
    *prompt, last = [{"role": role, "content": text} for role, text in turns]
    encoded = encode_conversation(tokenizer, prompt, [last], train_on=stage["train_on"])
    ids, learned = [], []
    for number, (silent, loud) in enumerate(TEMPLATES[name]):
        for text, has_loss in ((silent, False), (loud, not history or number == 1)):
            part = tokenizer.encode(text, add_special_tokens=False)
            ids, learned = ids + part, learned + [has_loss] * len(part)
    assert encoded.ids == ids
    assert encoded.learned == learned


def test_a_template_of_llama_factory_refuses_what_it_has_no_place_for(tmp_path):
    tokenizer = with_template(convert(FACTORY | {"template": "chatml"}, "llama-factory", tmp_path), begins=True)
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
