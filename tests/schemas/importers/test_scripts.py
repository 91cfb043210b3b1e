"""Shell scripts as they are in public repositories: nested defaults, lists, sums, and variables that nothing sets."""

import pytest
import yaml

from schemas.importers.common.files import find_command
from schemas.importers.common.shell import fill, join_sums
from schemas.importers.convert import import_config
from schemas.recipe.load import load_recipe


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("${A:-${B:-${C}/x}}/y", "seven/x/y"),
        ("${N}_$N", "7_7"),
        ("$((N * (3 + 1) - 2))", "26"),
        ("$((${N}/2))", "3"),
        ("$((2**99999))", "$((2**99999))"),
        ("$((N / 0))", "$((N / 0))"),
        ("$(((N + 1) * 2))/$(((N)))", "16/7"),
        ("${EMPTY:-}x${N:-}", "x7"),
        ("$((__import__('os')))", "$((__import__('os')))"),
        ("$HOME/models/${NAME:=m}", "~/models/m"),
        ("${1:?Usage}/$2", "${1:?Usage}/$2"),
        ("${open", "${open"),
    ],
)
def test_what_a_script_sets_is_written_out(word, written):
    assert fill(join_sums(word).replace(" ", ""), {"C": "seven", "N": "7"}) == written.replace(" ", "")


def test_lists_are_the_words_of_the_command_that_spreads_them():
    command = find_command(
        "N=4\n"
        "DATA=(\n    data.train_files=~/a.parquet  # the rows (of both\n"
        "    # data.val_files=b\n    data.seed=$((N * 2))\n)\n"
        "MODEL=(actor.path='org/name')\nMODEL+=(\n  actor.n=$N\n)\n"
        'python -m verl.trainer.main_ppo "${DATA[@]}" \\\n  "${MODEL[@]}" trainer.nnodes=1 \\  # one\n  trainer.x=2\n',
        "train.sh",
    )
    assert command.tree == {
        "data": {"train_files": "~/a.parquet", "seed": 8},
        "actor": {"path": "org/name", "n": 4},
        "trainer": {"nnodes": 1, "x": 2},
    }


def test_an_unquoted_variable_is_the_words_of_its_value():
    command = find_command(
        'MORE="\n    --lr 2e-4 \\\n    --targets q_proj v_proj"\n'
        "NOTE='two words'\n"
        'A=$NOTE; export B="$NOTE"\n'
        'trl sft --model org/name $MORE --note "$NOTE" --a $A --path x/${B} --title "a: b" --map \'{c: 1}\' # $MORE\n',
        "train.sh",
    )
    assert command.words == ("trl", "sft")
    assert command.tree == {
        "model": "org/name",
        "lr": 2e-4,
        "targets": ["q_proj", "v_proj"],
        "note": "two words",
        "a": ["two", "words"],
        "path": ["x/two", "words"],
        "title": "a: b",
        "map": {"c": 1},
    }


def test_what_is_around_a_command_is_no_part_of_it():
    command = find_command(
        "cd project && GPUS=0 nohup python -m verl.trainer.main_ppo a.b='x > y | z' a.c=$(date +%s|cut -c1) \\\n"
        '  a.d=\\>x a.e=<name> ${@:2} $@ 2>&1 | tee "log-$(date +%s).txt" &\n'
        "python x.py > train.log 2> errors.log\n",
        "train.sh",
    )
    assert command.tree == {"a": {"b": "x > y | z", "c": "$(date +%s|cut -c1)", "d": ">x", "e": "<name>"}}
    assert command.words[-2:] == ("-m", "verl.trainer.main_ppo")


def test_a_variable_among_the_options_that_nothing_sets_is_in_the_report(tmp_path):
    for options in ("--learning_rate 1e-5 $MORE --seed 3", "$MORE --seed 3", "--seed 3 ${EMPTY:-} ${MORE}"):
        script = tmp_path / "train.sh"
        script.write_text(f"trl sft --model_name_or_path org/name --dataset_name org/data {options}\n")
        made = import_config([script], None, tmp_path / "recipe.yaml")
        report = {entry.key: entry for entry in made.entries}
        assert report["seed"].value == 3
        odd = [entry for key, entry in report.items() if key.startswith("$")]
        assert [(entry.key.strip("${}"), entry.status) for entry in odd] == [("MORE", "not supported")]
        assert "nothing sets it" in odd[0].note


def test_a_group_of_defaults_stands_beside_its_keys():
    for line in ("optim=fsdp optim.lr=0.1", "optim.lr=0.1 optim=fsdp"):
        assert find_command(f"torchrun -m x {line} b.c=1", "t.sh").tree["optim"] == {"lr": 0.1, "(group)": "fsdp"}


def test_what_nothing_sets_is_a_path_of_its_name_and_is_named(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$DATA/train.parquet \\\n"
        "  actor_rollout_ref.model.path=$1 actor_rollout_ref.rollout.n=4 data.train_batch_size=8 \\\n"
        "  data.apply_chat_template_kwargs.enable_thinking=False actor_rollout_ref.actor.megatron.seed=3\n"
    )
    made = import_config([script], None, tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(made.text)
    load_recipe(tmp_path / "recipe.yaml")
    stage = yaml.safe_load(made.text)["stages"]["rl"]
    assert (stage["model"], stage["prompts"]["from"]) == ("path:./1", "path:./DATA/train.parquet")
    assert stage["chat_template_kwargs"] == {"enable_thinking": False}
    notes = {entry.key: entry for entry in made.entries if entry.given}
    assert notes["actor_rollout_ref.model.path"].status == "not supported"
    assert "nothing sets $1" in notes["actor_rollout_ref.model.path"].note
    assert "nothing sets $DATA" in notes["data.train_files"].note
    assert notes["actor_rollout_ref.actor.megatron.seed"].status == "not supported"


def test_options_of_a_launcher_are_no_unknown_keys(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "python mason.py --cluster a/b --workspace w --priority high --preemptible --image i --gpus 8 -- \\\n"
        "  python open_instruct/finetune.py --model_name_or_path org/name --dataset_mixer_list org/data 1.0\n"
    )
    made = import_config([script], None, tmp_path / "recipe.yaml")
    assert made.tool.name == "open-instruct"
    assert {entry.status for entry in made.entries if entry.given} == {"harmless", "mapped"}


def test_options_that_switch_off_what_is_on_are_those_of_their_keys(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "trl sft --model_name_or_path org/name --dataset_name org/rows --no_bf16 --no-gradient-checkpointing \\\n"
        "  --packing --no_packing --no_shuffling --no_cuda\n"
    )
    made = import_config([script], None, tmp_path / "recipe.yaml")
    notes = {entry.key: entry for entry in made.entries if entry.given}
    assert list(notes) == [
        "model_name_or_path",
        "dataset_name",
        "packing",
        "no_packing",
        "no_shuffling",
        "no_cuda",
        "no_bf16",
        "no_gradient_checkpointing",
    ]
    assert notes["no_bf16"].value is notes["no_gradient_checkpointing"].value is True
    unknown = [key for key, entry in notes.items() if entry.status == "unknown"]
    assert unknown == ["no_packing", "no_shuffling"]
    stage = yaml.safe_load(made.text)["stages"]["sft"]
    assert (stage["bf16"], stage["gradient_checkpointing"]) == (False, False)
