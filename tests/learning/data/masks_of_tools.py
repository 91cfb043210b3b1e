"""Conversations that axolotl and LLaMA-Factory turn into tokens, with the tokens that have a loss.

`python -m tests.learning.data.masks_of_tools` in an environment with both tools writes `masks_of_tools.json`: the text
of each conversation as both tools tokenize it, in parts of equal loss.
"""

import json
import logging
import sys
import time
import types
from importlib.machinery import ModuleSpec
from itertools import groupby
from pathlib import Path

from learning.data.chat_settings import PINNED_DATE
from tests.learning.data.template_families import FAMILIES, make_tokenizer

GOLDEN = Path(__file__).with_suffix(".json")
CONVERSATIONS = {
    "one turn": [("user", "2+2?"), ("assistant", "It is 4.")],
    "spaces": [("user", "2+2?"), ("assistant", "It is 4."), ("user", " 3+3?\n"), ("assistant", "6. \n")],
    "equal turns": [("user", "2+2?"), ("assistant", "4"), ("user", "2+2?"), ("assistant", "4")],
    "system": [("system", "Be brief."), ("user", "2+2?"), ("assistant", "4."), ("user", "3+3?"), ("assistant", "6.")],
}
MARKERS = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
MARKERS += ["<|user|>", "<|assistant|>", "<|end|>", "<|system|>"]


def make_factory_tokenizer():
    """Return a byte-level tokenizer with the markers of LLaMA-Factory's templates."""
    tokenizer = make_tokenizer("chatml")
    tokenizer.add_special_tokens({"eos_token": "</s>", "bos_token": "<s>", "pad_token": "</s>"})
    tokenizer.add_special_tokens({"additional_special_tokens": MARKERS})
    return tokenizer


def write_messages(name, only_first=False):
    """Return the messages of a conversation; with `only_first`, `train` marks the first answer alone."""
    messages = [{"role": role, "content": text} for role, text in CONVERSATIONS[name]]
    if only_first:
        answers = [message for message in messages if message["role"] == "assistant"]
        for message in answers:
            message["train"] = message is answers[0]
    return messages


def split_by_loss(tokenizer, ids, learned):
    """Return the text in parts of equal loss: `[[text, has_loss], …]`."""
    pairs = groupby(zip(ids, learned, strict=True), key=lambda pair: bool(pair[1]))
    return [[tokenizer.decode([token for token, _ in part]), has_loss] for has_loss, part in pairs]


def run_llama_factory(template, conversation, mask_history):
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments

    tokenizer = make_factory_tokenizer()
    options = DataArguments(template=template, mask_history=mask_history, cutoff_len=4096)
    made = get_template_and_fix_tokenizer(tokenizer, options)
    processor = SupervisedDatasetProcessor(template=made, tokenizer=tokenizer, processor=None, data_args=options)
    messages = write_messages(conversation)
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
    media = {"tools": None, "images": [], "videos": [], "audios": []}
    prompt, response = messages[:-1], messages[-1:]
    ids, labels = processor._encode_data_example(prompt=prompt, response=response, system=system, **media)
    return split_by_loss(tokenizer, ids, [label != -100 for label in labels])


def run_axolotl(family, conversation, marked):
    from axolotl.prompt_strategies.chat_template import StrategyLoader
    from axolotl.utils.dict import DictDefault

    tokenizer = make_tokenizer(family)
    tokenizer.eos_token = FAMILIES[family].end.strip()
    data = {"path": "a.jsonl", "type": "chat_template"} | ({"message_field_training": "train"} if marked else {})
    options = DictDefault({"sequence_len": 4096, "train_on_inputs": False, "chat_template": None})
    strategy = StrategyLoader()(tokenizer, options, data)
    row = strategy.tokenize_prompt({"messages": write_messages(conversation, only_first=marked)})
    parts = split_by_loss(tokenizer, row["input_ids"], [label != -100 for label in row["labels"]])
    for form in ("%d %b %Y", "%Y-%m-%d"):  # axolotl renders today's date
        today, pinned = time.strftime(form), PINNED_DATE.strftime(form)
        parts = [[text.replace(today, pinned), has_loss] for text, has_loss in parts]
    return parts


def _write_lines(rows):
    return ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def main():
    logging.disable()
    import peft  # noqa: F401 (imports transformers' vision modules before the stand-ins below exist)

    for name in ("torchaudio", "librosa", "av"):  # imported by LLaMA-Factory for media, which no row has
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    from schemas.importers.common.factory_templates import TURNS

    factory = [
        {"name": name, "conversation": talk, "last_only": last, "parts": run_llama_factory(name, talk, last)}
        for name in sorted(TURNS)
        for talk in CONVERSATIONS
        for last in (False, True)
    ]
    axolotl = [
        {"name": name, "conversation": talk, "marked": marked, "parts": run_axolotl(name, talk, marked)}
        for name in FAMILIES
        for talk in CONVERSATIONS
        for marked in (False, True)
        if not (name == "gemma" and talk == "system")  # its template refuses the role
    ]
    tools = [
        f'"{tool}": [\n{_write_lines(rows)}\n]' for tool, rows in (("llama-factory", factory), ("axolotl", axolotl))
    ]
    GOLDEN.write_text("{\n" + ",\n".join(tools) + "\n}\n")


if __name__ == "__main__":
    main()
