"""What sft learns from converted files, against transformers' own forward and chat template."""

import pytest
import torch

from learning.data.examples import encode_row
from learning.models.policy import load_policy
from schemas.stages.sft import Sft
from tasks.context import Context
from tasks.sft import run
from tests.tasks.data_stages import convert, line

CHATS = "\n".join([line("2+2?", "4"), line("1+1?", "It is 2.", "And 3+3?", "6"), line("5+6=", "11")])


def first_loss(tmp_path, model, files, train_on, **source):
    convert(tmp_path, files, **source)
    settings = {"kind": "sft", "model": "m", "data": "d", "max_steps": 1, "logging_steps": 1, "train_on": train_on}
    inputs = {"model": model, "data": tmp_path / "work/outputs/data"}
    (tmp_path / "sft").mkdir()
    context = Context(inputs, tmp_path / "sft", tmp_path / "checkpoints", seed=3)
    return run(Sft.model_validate(settings), context).metrics["loss"]


def mean_loss(model, sequences):
    """Mean −log p over the learned tokens of all sequences (ids, learned), each by itself."""
    total, count = 0.0, 0
    for ids, learned in sequences:
        with torch.no_grad():
            logp = model(torch.tensor([ids])).logits.double().log_softmax(-1)[0]
        chosen = [i for i in range(1, len(ids)) if learned[i]]
        total -= sum(float(logp[i - 1, ids[i]]) for i in chosen)
        count += len(chosen)
    return total / count


@pytest.mark.parametrize("train_on", ["last", "all"])
def test_the_first_loss_on_a_messages_file_is_that_of_the_template_and_the_model(
    tmp_path, tiny_policy_folder, train_on
):
    policy = load_policy(tiny_policy_folder)
    tokenizer, sequences = policy.tokenizer, []
    conversations = [
        [("user", "2+2?"), ("assistant", "4")],
        [("user", "1+1?"), ("assistant", "It is 2."), ("user", "And 3+3?"), ("assistant", "6")],
        [("user", "5+6="), ("assistant", "11")],
    ]
    for conversation in conversations:
        messages = [{"role": role, "content": text} for role, text in conversation]
        ids, learned = [], []
        for i, message in enumerate(messages):
            before = (
                tokenizer.apply_chat_template(
                    messages[:i], add_generation_prompt=message["role"] == "assistant", tokenize=True, return_dict=False
                )
                if i
                else []
            )
            after = tokenizer.apply_chat_template(messages[: i + 1], tokenize=True, return_dict=False)
            wanted = message["role"] == "assistant" and (train_on == "all" or i == len(messages) - 1)
            learned += [False] * (len(before) - len(ids)) + [wanted] * (len(after) - max(len(before), len(ids)))
            ids = after
        sequences.append((ids, learned))
    loss = first_loss(tmp_path, tiny_policy_folder, {"chats.jsonl": CHATS}, train_on)
    assert loss == pytest.approx(mean_loss(policy.model, sequences), abs=1e-6)


def test_all_tokens_of_plain_text_are_learned_and_its_end(tmp_path, tiny_policy_folder):
    policy = load_policy(tiny_policy_folder)
    texts = ["To be, or not.", "2+2=4"]
    tokenizer = policy.tokenizer
    sequences = [([*tokenizer(text)["input_ids"], tokenizer.eos_token_id], [True] * 99) for text in texts]
    files = {f"{i}.txt": text for i, text in enumerate(texts)}
    loss = first_loss(tmp_path, tiny_policy_folder, files, "last", format="text")
    assert loss == pytest.approx(mean_loss(policy.model, sequences), abs=1e-6)


def test_text_that_looks_like_a_special_token_stays_text(tiny_policy):
    tokenizer = tiny_policy.tokenizer
    row = {"id": "a", "prompt": [], "completion": [{"role": "text", "content": tokenizer.eos_token + "x"}]}
    assert encode_row(tokenizer, row).ids.count(tokenizer.eos_token_id) == 1
