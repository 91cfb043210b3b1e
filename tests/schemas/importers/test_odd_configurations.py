"""Configurations with odd but legal keys keep their meaning: launchers, files, schedules, DAPO, losses."""

import shutil
from pathlib import Path

import pytest
import yaml

from schemas.importers.convert import import_config
from schemas.recipe.load import load_recipe

FIXTURES = Path(__file__).parent / "fixtures"
AXOLOTL = {"base_model": "org/name", "datasets": [{"path": "org/data", "type": "chat_template"}]}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The fixtures' data and rewards beside the configuration."""
    for name in ("data", "my_rewards"):
        shutil.copytree(FIXTURES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(place, case, **options):
    """The only stage of a fixture, and the notes by key."""
    made = import_config([FIXTURES / case], None, place / "recipe.yaml", **options)
    (place / "recipe.yaml").write_text(made.text)
    load_recipe(place / "recipe.yaml")
    (stage,) = yaml.safe_load(made.text)["stages"].values()
    return stage, {entry.key: entry for entry in made.entries if entry.given}


def convert_tree(place, tree, tool):
    """The same of a map, as a configuration of a tool."""
    (place / "config.yaml").write_text(yaml.safe_dump(tree))
    made = import_config([place / "config.yaml"], tool, place / "recipe.yaml")
    (stage,) = yaml.safe_load(made.text)["stages"].values()
    return stage, {entry.key: entry for entry in made.entries if entry.given}


@pytest.mark.parametrize(
    ("case", "devices", "rows"), [("trl/sft_launched.sh", 8, 2 * 8 * 8), ("open-instruct/dpo_shares.sh", 8, 16 * 8)]
)
def test_the_devices_of_a_launcher_are_in_the_batch(case, devices, rows, place):
    stage, notes = convert(place, case)
    assert stage["per_device_train_batch_size"] * stage.get("gradient_accumulation_steps", 1) == rows
    assert stage["resources"]["train"]["workers"] == devices
    assert notes["num_processes"].status == "mapped"
    stage, notes = convert(place, case, devices=1)
    assert stage["per_device_train_batch_size"] * stage.get("gradient_accumulation_steps", 1) == rows // devices
    assert "resources" not in stage
    assert notes["num_processes"].status == "harmless"


def test_the_batch_of_verl_is_that_of_all_devices(place):
    stage, _ = convert(place, "verl/sft_multiturn.sh")
    assert "resources" not in stage


def test_dapo_of_verl_keeps_its_penalty_and_its_groups(place):
    stage, notes = convert(place, "verl/dapo.sh")
    assert stage["reward_shaping"] == [{"use": "overlong", "max_length": 20480, "cache": 4096}]
    assert stage["resample"] == [{"use": "dynamic_sampling", "budget": 30.0}]  # 10 draws of 3 × 512 prompts
    assert stage["filter_groups"] == "reward_variance"
    assert (stage["warmup_steps"], stage["max_steps"], stage["learning_rate"]) == (1, 1, 1e-7)  # 1 of 10 steps
    assert not [key for key, entry in notes.items() if entry.status == "unknown"]


def test_a_group_of_one_of_verl_has_its_reward_for_an_advantage(place):
    stage, _ = convert(place, "verl/lora_one_completion_misspelt.sh")
    assert (stage["num_generations"], stage["advantage"]) == (1, [{"use": "broadcast_to_tokens"}])
    assert stage["learning_rate"] == 3e-5


def test_the_trainer_of_verl_with_an_engine_has_its_own_defaults(place):
    stage, _ = convert(place, "verl/engine_sft.sh")
    assert (stage["learning_rate"], stage["lr_scheduler_type"], stage["adam_beta2"]) == (2e-5, "cosine", 0.95)
    assert (stage["data"]["max_rows"], stage["eval_steps"], stage["data"]["format"]) == (10, 2, "messages")
    assert stage["validation"] == {"from": "path:./data/chats.jsonl", "format": "messages"}
    bare = place / "bare.sh"
    bare.write_text("torchrun -m verl.trainer.sft_trainer data.train_files=data/chats.jsonl model.path=org/name\n")
    stage = yaml.safe_load(import_config([bare], None, place / "recipe.yaml").text)["stages"]["sft"]
    assert (stage["learning_rate"], stage["adam_beta2"]) == (1e-3, 0.999)
    assert not {"lr_scheduler_type", "warmup_ratio"} & stage.keys()  # constant, as ours


def test_a_mixture_of_alignment_handbook_keeps_splits_and_shares(place):
    stage, _ = convert(place, "trl/mixture_dpo.yaml")
    assert stage["data"] == [
        {"from": "path:./data/pairs.jsonl", "split": "[:50%]"},
        {"from": "hub:HuggingFaceH4/ultrafeedback_binarized", "split": "train_prefs"},
    ]


def test_a_reward_of_a_file_in_a_script_is_no_script(place):
    stage, notes = convert(place, "verl/ppo_own_reward.sh")
    assert stage["rewards"] == [{"use": "foreign.verl", "function": "my_rewards.sums:compute_score"}]
    assert notes["custom_reward_function.path"].value == "my_rewards/sums.py"
    assert convert(place, "verl/grpo.sh")[0]["rewards"] == stage["rewards"]


@pytest.mark.parametrize(("word", "ours"), [("kl", "k2"), ("low_var_kl", "k3"), ("k3+", "k2"), ("mse", "k2")])
def test_estimators_of_verl_have_their_gradients(word, ours, place):
    (place / "run.sh").write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=data/verl.jsonl "
        "actor_rollout_ref.model.path=org/name actor_rollout_ref.rollout.n=4 data.train_batch_size=8 "
        f"actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type={word}\n"
    )
    stage, notes = convert(place, place / "run.sh")
    assert stage["loss_terms"] == [{"use": "kl", "estimator": ours, "coef": 0.001}]
    assert notes["actor_rollout_ref.actor.kl_loss_type"].status == ("default differs" if word == "kl" else "mapped")


def test_losses_of_pairs_are_those_that_are_named(place):
    stage, notes = convert(place, "oumi/ipo_misspelt.yaml")
    assert stage["loss"] == {"use": "ipo", "beta": 0.2}
    assert "did you mean `training.lr_scheduler_type`?" in notes["training.lr_scheduler"].note
    stage, _ = convert(place, "trl/dpo_three_losses.yaml")
    assert stage["loss"][2] == {"use": "nll", "per_token": True, "weight": 1.0}  # as TRL's `sft`: test_preference_trl


def test_files_and_fields_of_axolotl_are_those_that_are_named(place):
    stage, _ = convert(place, "axolotl/orpo_files.yml")
    assert stage["data"][1] == {"from": "path:./data/pairs.jsonl"}
    stage, notes = convert(place, "axolotl/kto_fields.yaml")
    assert stage["data"][1] == {"from": "path:./data/labels.jsonl", "format": "labels"}
    assert notes["datasets.1.type.field_label"].status == "mapped"
    assert notes["dataset_exact_deduplication"].status == "not supported"
    several = [{"path": "json", "data_files": ["data/chats.jsonl", "data/texts.jsonl"], "type": "chat_template"}]
    stage, notes = convert_tree(place, AXOLOTL | {"datasets": several}, "axolotl")
    assert [source["from"] for source in stage["data"]] == ["path:./data/chats.jsonl", "path:./data/texts.jsonl"]
    assert notes["datasets.0.data_files"].status == "mapped"


@pytest.mark.parametrize(
    ("given", "options", "ours", "status"),
    [
        ("polynomial", {}, "linear", "mapped"),
        ("polynomial", {"power": 2}, "linear", "not supported"),
        ("cosine_with_restarts", {"num_cycles": 1}, "cosine", "mapped"),
        ("cosine_with_restarts", {"num_cycles": 3}, "cosine", "not supported"),
        ("reduce_lr_on_plateau", {}, None, "not supported"),
    ],
)
def test_a_schedule_that_is_not_there_becomes_the_nearest_one(given, options, ours, status, place):
    tree = {"model_name_or_path": "org/name", "dataset_name": "org/data", "lr_scheduler_type": given}
    stage, notes = convert_tree(place, tree | {"lr_scheduler_kwargs": options}, "trl:sft")
    assert stage["lr_scheduler_type"] == (ours or "constant")
    assert notes["lr_scheduler_type"].status == status
    assert all(entry.status == status for key, entry in notes.items() if key.startswith("lr_scheduler_kwargs."))


def test_shares_of_mixtures_are_their_first_rows(place):
    stage, _ = convert(place, "open-instruct/dpo_shares.sh")
    assert stage["data"][1] == {"from": "hub:org/other", "split": "train[:25%]"}
    assert stage["loss"] == {"use": "dpo_norm", "beta": 5.0}


def test_models_of_evaluations_and_merges(place):
    stage, _ = convert(place, "lm-eval/chat.sh")
    assert stage["model"] == "hub:EleutherAI/pythia-160m@step100000"
    tree = {"model": "hf", "model_args": {"pretrained": "org/name", "enable_thinking": False}, "tasks": ["gsm8k"]}
    stage, notes = convert_tree(place, tree, "lm-eval")
    assert stage["chat_template_kwargs"] == {"enable_thinking": False}
    assert notes["model_args.enable_thinking"].status == "mapped"
    stage, notes = convert(place, "mergekit/breadcrumbs_adapter.yaml")
    assert stage["models"][2]["model"] == "hub:org/mistral-lora"
    assert "must be mlabonne/NeuralHermes-2.5-Mistral-7B" in notes["models.2.model"].note
