"""What imported keys mean: batches, schedules, adapters, masks, losses, data; values that cannot be read."""

import json

import pytest
import yaml

from schemas.errors import RecipeError
from schemas.importers.common.leaves import Leaves
from schemas.importers.convert import import_config
from schemas.recipe.load import load_recipe

AXOLOTL = {"base_model": "org/name", "datasets": [{"path": "org/data", "type": "alpaca"}], "learning_rate": 1e-4}
TRL = {"model_name_or_path": "org/name", "dataset_name": "org/data"}


def convert(tree, tool, tmp_path, **options):
    """The only stage of the recipe, and the notes by key."""
    (tmp_path / "config.json").write_text(json.dumps(tree))
    made = import_config([tmp_path / "config.json"], tool, tmp_path / "recipe.yaml", **options)
    (tmp_path / "recipe.yaml").write_text(made.text)
    load_recipe(tmp_path / "recipe.yaml")
    (stage,) = yaml.safe_load(made.text)["stages"].values()
    return stage, {entry.key: entry for entry in made.entries}


@pytest.mark.parametrize("devices", [1, 8])
def test_the_rows_of_a_step_are_per_device_times_accumulation_times_devices(devices, tmp_path):
    tree = AXOLOTL | {"micro_batch_size": 2, "gradient_accumulation_steps": 3}
    sft, _ = convert(tree, "axolotl", tmp_path, devices=devices)
    assert sft["per_device_train_batch_size"] * sft.get("gradient_accumulation_steps", 1) == 6 * devices
    assert sft["per_device_train_batch_size"] == 2
    pairs, _ = convert(tree | {"rl": "dpo"}, "axolotl", tmp_path, devices=devices)
    assert pairs["per_device_train_batch_size"] == 6 * devices
    assert ("resources" in pairs) == (devices > 1)


def test_sharding_becomes_a_training_group(tmp_path):
    for key, strategy in (("fsdp", "fsdp2"), ("deepspeed", "fsdp2"), (None, "ddp")):
        more = {} if key is None else {key: "full_shard" if key == "fsdp" else "zero3.json"}
        stage, _ = convert(AXOLOTL | more, "axolotl", tmp_path, devices=4)
        assert stage["resources"]["train"] == {"workers": 4, "num_gpus": 1, "strategy": strategy}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 7},
            {"lr_scheduler_type": "constant", "warmup_steps": 7},
        ),
        ({"lr_scheduler_type": "cosine", "warmup_ratio": 0.2}, {"lr_scheduler_type": "cosine", "warmup_ratio": 0.2}),
        ({"warmup_steps": 0.25}, {"lr_scheduler_type": "linear", "warmup_ratio": 0.25}),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}, "learning_rate": 1e-4},
            {"lr_scheduler_type": "cosine_with_min_lr", "min_lr_ratio": 0.01, "learning_rate": 1e-4},
        ),
        (
            {
                "lr_scheduler_type": "warmup_stable_decay",
                "lr_scheduler_kwargs": {"num_decay_steps": 5},
                "max_steps": 50,
            },
            {"lr_scheduler_type": "warmup_stable_decay", "num_decay_steps": 5, "max_steps": 50},
        ),
        ({"num_train_epochs": 2, "max_steps": 30}, {"max_steps": 30}),
        ({}, {"num_train_epochs": 3.0, "learning_rate": 2e-5, "lr_scheduler_type": "linear"}),
        ({"optim": "paged_adamw_8bit"}, {"optim": "adamw_8bit"}),
        ({"max_grad_norm": 0}, {"max_grad_norm": None}),
        ({"adam_beta2": 0.95, "weight_decay": "1e-2"}, {"adam_beta2": 0.95, "weight_decay": 0.01}),
        ({"use_peft": True, "lora_target_modules": "all-linear"}, {"use_peft": True, "lora_dropout": 0.05}),
        ({"use_peft": True, "lora_target_modules": ".*q_proj"}, {"lora_target_modules": ".*q_proj"}),
        ({"fp16": True}, {"bf16": True}),
        ({"dtype": "bfloat16", "bf16": True}, {"dtype": "bfloat16"}),
        ({"dataset_name": "org/data", "dataset_config": "en"}, {"data": {"from": "hub:org/data", "subset": "en"}}),
    ],
)
def test_keys_of_training_keep_their_meaning(theirs, ours, tmp_path):
    stage, _ = convert(TRL | theirs, "trl:sft", tmp_path)
    assert {key: stage.get(key) for key in ours} == ours


BEST = {"load_best_model_at_end": True, "eval_steps": 10, "do_eval": True}


@pytest.mark.parametrize(
    ("tool", "tree", "metric", "ours"),
    [
        ("trl:sft", TRL, "mean_token_accuracy", "eval_mean_token_accuracy"),
        ("trl:dpo", TRL, "eval_rewards/accuracies", "eval_rewards/accuracies"),
        ("trl:reward", TRL, "accuracy", "eval_accuracy"),
        ("trl:sft", TRL, "eval_loss", None),
        ("trl:sft", TRL, "rouge", None),
    ],
)
def test_the_metric_of_the_best_weights_keeps_its_name_and_direction(tool, tree, metric, ours, tmp_path):
    held_out = {"dataset_test_split": "test", "eval_strategy": "steps"}
    more = {"metric_for_best_model": metric, "greater_is_better": metric != "eval_loss"}
    stage, notes = convert(tree | BEST | held_out | more, tool, tmp_path)
    assert stage["load_best_model_at_end"] is True
    assert stage.get("metric_for_best_model") == ours
    assert notes["metric_for_best_model"].status == ("not supported" if metric == "rouge" else "mapped")
    assert stage.get("greater_is_better") == (None if metric == "rouge" else metric != "eval_loss")


def test_rewards_of_several_functions_may_give_none_as_in_trl(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def one(completions): return []\ndef two(completions): return []\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 8)
    tree = {"model_name_or_path": "org/name", "dataset_name": "rows.jsonl", "max_steps": 2}
    several, _ = convert(tree | {"reward_funcs": ["mine.one", "accuracy_reward"]}, "trl:grpo", tmp_path)
    assert [(reward["use"], reward["optional"]) for reward in several["rewards"]] == [
        ("foreign.trl", True),
        ("mathematics.equal", True),
    ]
    alone, _ = convert(tree | {"reward_funcs": ["mine.one"]}, "trl:grpo", tmp_path)
    assert alone["rewards"] == [{"use": "foreign.trl", "function": "mine:one"}]


def test_the_second_format_of_llama_factory_is_recognised_by_its_keys_and_its_commands(tmp_path):
    (tmp_path / "rows.yaml").write_text("pairs: {path: org/pairs, split: train_prefs, converter: pair, weight: 2}\n")
    tree = {"model": "org/name", "train_dataset": str(tmp_path / "rows.yaml"), "model_class": "llm"}
    tree |= {"micro_batch_size": 2, "global_batch_size": 16, "optim_config": {"name": "muon", "wd": 0.1}}
    stage, notes = convert(tree, None, tmp_path, devices=4)
    assert (stage["kind"], stage["per_device_train_batch_size"], stage["optim"]) == ("preference", 16, "muon")
    assert stage["data"] == {"from": "hub:org/pairs", "format": "preference", "split": "train_prefs", "repeat": 2}
    assert notes["train_dataset.pairs.weight"].status == "default differs"
    script = tmp_path / "train.sh"
    script.write_text("llamafactory-cli rm --model org/name --train_dataset org/pairs --max_steps 3\n")
    made = import_config([script], None, tmp_path / "recipe.yaml")
    assert made.tool.name == "llama-factory-v1"
    assert "kind: reward_model" in made.text


def test_a_merge_method_that_posttrain_lacks_is_named_with_the_nearest_one(tmp_path):
    models = [{"model": "org/one", "parameters": {"weight": 1, "epsilon": 0.1}}, {"model": "org/two"}]
    tree = {"merge_method": "della", "base_model": "org/base", "models": models, "parameters": {"densty": 0.5}}
    stage, notes = convert(tree, None, tmp_path)
    assert (stage["merge_method"], stage["models"][0]["parameters"]) == ("dare_ties", {"weight": 1})
    assert notes["merge_method"].status == notes["models.0.parameters.epsilon"].status == "not supported"
    assert "did you mean `density`?" in notes["parameters.densty"].note
    arc = {"merge_method": "nuslerp", "models": models, "parameters": {"weight": 3}}
    stage, _ = convert(arc, None, tmp_path)
    assert (stage["merge_method"], stage["base_model"], stage["parameters"]) == ("slerp", "hub:org/one", {"t": 0.75})


def test_iterations_of_grpo_count_generations(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n' * 40)
    tree = {"model_name_or_path": "org/name", "dataset_name": str(rows), "reward_funcs": ["accuracy_reward"]}
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4}
    stage, _ = convert(tree | batch | {"num_train_epochs": 3}, "trl:grpo", tmp_path, devices=2)
    assert (stage["generation_batch_size"], stage["max_steps"]) == (16, 3 * 40 // 4)
    stage, _ = convert(
        tree | batch | {"max_steps": 24, "steps_per_generation": 6, "num_iterations": 2}, "trl:grpo", tmp_path
    )
    assert (stage["generation_batch_size"], stage["num_mini_batches"], stage["num_iterations"]) == (24, 3, 2)
    assert stage["max_steps"] == 24 // (3 * 2)


def test_a_value_that_cannot_be_taken_over_is_named_with_what_to_do(tmp_path):
    stage, notes = convert(TRL | {"lr_scheduler_type": "greedy", "optim": "galore_adamw"}, "trl:sft", tmp_path)
    assert "optim" not in stage
    assert notes["optim"].status == "not supported"
    assert "there are adamw, adamw_8bit" in notes["optim"].note
    assert "no schedule greedy" in notes["lr_scheduler_type"].note


def test_a_default_of_the_tool_is_stated_only_where_it_differs(tmp_path):
    _, notes = convert(TRL, "trl:sft", tmp_path)
    assert notes["lr_scheduler_type"].status == "default differs"
    assert "theirs linear by default; ours constant" in notes["lr_scheduler_type"].note
    assert "weight_decay" not in notes


def test_a_configuration_without_model_or_data_is_refused(tmp_path):
    for missing in ("base_model", "datasets"):
        tree = {key: value for key, value in AXOLOTL.items() if key != missing}
        with pytest.raises(RecipeError, match=missing):
            convert(tree, "axolotl", tmp_path)
    with pytest.raises(RecipeError, match="no tool is recognised"):
        convert({"a": 1}, None, tmp_path)
    with pytest.raises(RecipeError, match=r"no tool axolot\n.*did you mean `axolotl`"):
        convert(AXOLOTL, "axolot", tmp_path)


def test_keys_with_dots_do_not_hide_each_other():
    leaves = Leaves({"a": {"b": 1}, "a.b": 2, "a.b#2": 3, "c": [{}, [], {"d": None}], "e": {}}, "file")
    assert leaves.values == {"a.b": 1, "a.b#2": 2, "a.b#2#2": 3, "c.0": {}, "c.1": [], "c.2.d": None, "e": {}}


def test_a_script_is_parsed_and_never_run(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\nexport MODEL=org/name\nN=4\ntouch ran\necho $(touch ran)\n"
        "python3 -m verl.trainer.main_ppo data.train_files=org/data \\\n"
        "  # a comment between\n"
        '  actor_rollout_ref.model.path="${MODEL}" actor_rollout_ref.rollout.n=$N algorithm.adv_estimator=grpo \\\n'
        "  trainer.total_training_steps=${STEPS:-9} trainer.experiment_name=$(touch ran) +trainer.nnodes=2 $@\n"
    )
    made = import_config([script], None, tmp_path / "recipe.yaml")
    keys = {entry.key: entry for entry in made.entries if entry.given}
    assert keys["actor_rollout_ref.rollout.n"].value == 4
    assert keys["trainer.total_training_steps"].value == 9
    assert not (tmp_path / "ran").exists()


def test_evaluation_rows_of_axolotl_are_evaluated_on(tmp_path):
    held_out = {"test_datasets": [{"path": "eval.jsonl", "ds_type": "json", "split": "train", "type": "chat_template"}]}
    stage, notes = convert(AXOLOTL | held_out | {"eval_steps": 5}, "axolotl", tmp_path)
    assert stage["validation"] == {"from": "path:./eval.jsonl", "format": "messages"}
    assert (stage["eval_steps"], "validation_fraction" in stage) == (5, False)
    assert notes["test_datasets.0.path"].status == "mapped"


def test_rewards_prompts_and_system_prompt_of_open_r1_are_kept(tmp_path):
    more = {"reward_funcs": ["accuracy"], "dataset_prompt_column": "problem", "system_prompt": "Think.", "max_steps": 3}
    stage, _ = convert(TRL | more, "trl:grpo", tmp_path)
    assert stage["rewards"] == [{"use": "mathematics.equal"}]
    assert stage["prompts"] == {"from": "hub:org/data", "columns": {"prompt": "problem"}}
    assert stage["system_prompt"] == "Think."


def test_a_share_that_axolotl_holds_out_is_reported_as_what_it_becomes(tmp_path):
    stage, notes = convert(AXOLOTL | {"val_set_size": 0.02, "eval_steps": 50}, "axolotl", tmp_path)
    assert (stage["validation_fraction"], stage["eval_steps"]) == (0.02, 50)
    assert (notes["val_set_size"].status, notes["eval_steps"].status) == ("mapped", "mapped")


@pytest.mark.parametrize(
    ("sampling", "temperature", "statuses"),
    [
        ({"do_sample": False, "temperature": 1.0, "n": 4}, 0.0, {"n": "harmless"}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95}, 0.6, {"top_p": "not supported"}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 1.0}, 0.6, {"top_p": "harmless"}),
        ({"do_sample": True, "temperature": 0.6, "n": 4}, 0.6, {"n": "default differs"}),
    ],
)
def test_evaluations_of_verl_draw_as_they_did(sampling, temperature, statuses, tmp_path):
    tree = {
        "data": {"train_files": "a.parquet", "val_files": "b.parquet", "train_batch_size": 4},
        "actor_rollout_ref": {
            "model": {"path": "org/name"},
            "actor": {"ppo_mini_batch_size": 4},
            "rollout": {"n": 2, "val_kwargs": sampling},
        },
        "algorithm": {"adv_estimator": "grpo"},
        "trainer": {"total_training_steps": 10, "test_freq": 5},
    }
    stage, notes = convert(tree, "verl", tmp_path)
    assert (stage["eval_steps"], stage["eval_temperature"]) == (5, temperature)
    assert {key: notes[f"actor_rollout_ref.rollout.val_kwargs.{key}"].status for key in statuses} == statuses
