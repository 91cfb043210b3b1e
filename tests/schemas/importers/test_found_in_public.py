"""Values that public configurations have, and what they become."""

import json

import pytest
import yaml

from schemas.errors import RecipeError
from schemas.importers.convert import import_config
from schemas.recipe.load import load_recipe

AXOLOTL = {"base_model": "org/name", "datasets": [{"path": "org/data", "type": "chat_template"}]}
TRL = {"model_name_or_path": "org/name", "dataset_name": "org/data", "learning_rate": 1e-4}
OUMI = {"model": {"model_name": "org/name"}, "training": {"trainer_type": "TRL_SFT"}}
DATA = {"data": {"train": {"datasets": [{"dataset_name": "org/data", "split": "train[:95%]"}]}}}
LM_EVAL = {"model": "hf", "model_args": "pretrained=org/name", "tasks": ["gsm8k"]}
FACTORY = {"stage": "sft", "model_name_or_path": "org/name", "dataset": "a", "dataset_dir": "."}


def convert(tree, tool, tmp_path, **options):
    """The only stage of the recipe, the notes by key, and the recipe."""
    (tmp_path / "config.json").write_text(json.dumps(tree))
    made = import_config([tmp_path / "config.json"], tool, tmp_path / "recipe.yaml", **options)
    (tmp_path / "recipe.yaml").write_text(made.text)
    load_recipe(tmp_path / "recipe.yaml")
    recipe = yaml.safe_load(made.text)
    (stage,) = recipe["stages"].values()
    return stage, {entry.key: entry for entry in made.entries}, recipe


def test_a_cosine_that_ends_at_its_first_rate_is_constant(tmp_path):
    stage, notes, _ = convert(AXOLOTL | {"lr_scheduler": "cosine", "cosine_min_lr_ratio": 1.0}, "axolotl", tmp_path)
    assert stage.get("lr_scheduler_type", "constant") == "constant"
    assert "min_lr_ratio" not in stage
    assert "constant" in notes["cosine_min_lr_ratio"].note


@pytest.mark.parametrize(("theirs", "ours"), [("truncate", "truncate"), ("raise", None), ("drop", None)])
def test_long_rows_of_axolotl_are_cut_off_where_it_says_so(theirs, ours, tmp_path):
    stage, notes, _ = convert(AXOLOTL | {"excess_length_strategy": theirs}, "axolotl", tmp_path)
    assert stage.get("long_rows") == ours
    status = {"truncate": "mapped", "raise": "default differs", "drop": "harmless"}[theirs]
    assert notes["excess_length_strategy"].status == status


def test_a_warm_up_longer_than_the_training_ends_at_the_rate_that_it_reaches(tmp_path):
    stage, _, _ = convert(TRL | {"warmup_steps": 50, "max_steps": 10}, "trl:sft", tmp_path)
    assert (stage["warmup_steps"], stage["max_steps"], stage["learning_rate"]) == (10, 10, 1e-4 * 10 / 50)


def test_states_in_8_bits_are_not_sharded(tmp_path):
    more = {"optimizer": "adamw_bnb_8bit", "deepspeed": "zero3.json"}
    stage, notes, _ = convert(AXOLOTL | more, "axolotl", tmp_path, devices=4)
    assert (stage["optim"], stage["resources"]["train"]["strategy"]) == ("adamw", "fsdp2")
    assert notes["optimizer"].status == "default differs"
    assert convert(AXOLOTL | more, "axolotl", tmp_path)[0]["optim"] == "adamw_8bit"


def test_adafactor_has_no_moments_of_adamw(tmp_path):
    stage, notes, _ = convert(TRL | {"optim": "adafactor", "adam_beta2": 0.95}, "trl:sft", tmp_path)
    assert "adam_beta2" not in stage
    assert notes["adam_beta2"].status == "harmless"


def test_parts_of_a_known_key_are_not_unknown(tmp_path):
    more = {"ebft": {"mode": "strided", "deep": [{"a": 1}]}, "device_map": {"": 0}, "ebbft": 1}
    _, notes, _ = convert(AXOLOTL | more, "axolotl", tmp_path)
    assert [notes[key].status for key in ("ebft.mode", "ebft.deep.0.a", "ebbft")] == [
        *["not supported"] * 2,
        "unknown",
    ]
    assert "device_map." in notes


def test_names_of_the_hub_without_owner_get_the_one_that_they_have(tmp_path):
    stage, _, _ = convert(TRL | {"model_name_or_path": "gpt2", "dataset_name": "imdb"}, "trl:sft", tmp_path)
    assert (stage["model"], stage["data"]) == ("hub:openai-community/gpt2", "hub:stanfordnlp/imdb")
    with pytest.raises(RecipeError, match="names of the hub have an owner: write owner/strange"):
        convert(TRL | {"model_name_or_path": "strange"}, "trl:sft", tmp_path)


@pytest.mark.parametrize(
    ("tool", "tree"),
    [
        ("axolotl", AXOLOTL | {"datasets": [{"path": "org/data", "type": "chat_template", "split": "train[:95%]"}]}),
        ("trl:sft", TRL | {"dataset_train_split": "train[:95%]"}),
        ("oumi", OUMI | DATA),
    ],
)
def test_slices_of_splits_are_kept(tool, tree, tmp_path):
    source = convert(tree, tool, tmp_path)[0]["data"]
    assert (source["from"], source["split"]) == ("hub:org/data", "train[:95%]")
    text = json.dumps(tree).replace("train[:95%]", "train+test")
    key = next(
        entry for entry in convert(json.loads(text), tool, tmp_path)[1].values() if "train+test" in str(entry.value)
    )
    assert (key.status, "one for each part" in key.note) == ("not supported", True)


def test_rows_to_evaluate_on_are_kept(tmp_path):
    held_out = [{"path": "org/data", "type": "chat_template", "split": "train[95%:]"}]
    stage, _, _ = convert(AXOLOTL | {"test_datasets": held_out}, "axolotl", tmp_path)
    assert stage["validation"] == {"from": "hub:org/data", "split": "train[95%:]", "format": "messages"}
    stage, _, _ = convert(TRL | {"eval_strategy": "steps", "eval_steps": 5}, "trl:sft", tmp_path)
    assert (stage["validation"], stage["eval_steps"]) == ({"from": "hub:org/data", "split": "test"}, 5)
    prompts = {
        "eval_strategy": "steps",
        "reward_funcs": ["accuracy_reward"],
        "dataset_test_split": "held",
        "max_steps": 2,
    }
    assert convert(TRL | prompts, "trl:grpo", tmp_path)[0]["eval_prompts"] == {"from": "hub:org/data", "split": "held"}
    tree = OUMI | {"data": DATA["data"] | {"validation": {"datasets": [{"dataset_name": "org/exam", "split": "test"}]}}}
    assert "validation" not in convert(tree, "oumi", tmp_path)[0]
    tree["training"] = tree["training"] | {"eval_strategy": "steps"}
    assert convert(tree, "oumi", tmp_path)[0]["validation"] == {"from": "hub:org/exam", "split": "test"}


def test_a_number_of_rows_to_hold_out_is_a_share_of_those_that_there_are(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"instruction": "a", "output": "b"}\n' * 40)
    infos = {"a": {"file_name": "a.jsonl"}, "b": {"hf_hub_url": "org/exam", "split": "test[:10%]"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(infos))
    stage, _, _ = convert(FACTORY | {"val_size": 10}, "llama-factory", tmp_path)
    assert stage["validation_fraction"] == 0.25
    stage, notes, _ = convert(FACTORY | {"eval_dataset": "b", "max_samples": 9}, "llama-factory", tmp_path)
    exam = {"from": "hub:org/exam", "split": "test[:10%]", "format": "alpaca", "max_rows": 9}
    assert stage["validation"] == exam
    assert notes["eval_dataset"].status == "mapped"


@pytest.mark.parametrize(
    ("given", "seed", "of_examples"), [(7, 7, 7), ([0, 1, 2, 3], 0, 3), ("5,1,2,1234", 5, None), ([1, 2, 3], 1, None)]
)
def test_seeds_of_lm_eval_are_those_of_the_recipe_and_of_the_examples(given, seed, of_examples, tmp_path):
    stage, _, recipe = convert(LM_EVAL | {"seed": given}, "lm-eval", tmp_path)
    assert (recipe["seed"], stage["tasks"][0].get("seed")) == (seed, of_examples)
