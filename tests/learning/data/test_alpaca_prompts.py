"""`chat_template: alpaca` writes rows of Alpaca as axolotl's `type: alpaca` does, with and without input."""

import copy
import json
from pathlib import Path

import pytest

from learning.data.chat import encode_answer
from learning.data.chat_settings import apply_chat
from learning.data.turns import encode_conversation
from schemas.chat import Chat
from schemas.steps.chat_template import ALPACA
from tests.learning.data.template_families import make_tokenizer
from tests.tasks.data_stages import convert

END = "Write a response that appropriately completes the request."
WITH = f"Below is an instruction that describes a task, paired with an input that provides further context. {END}"
WITHOUT = f"Below is an instruction that describes a task. {END}"
CASES = {
    "with input": (
        {"instruction": "Add them.", "input": "2 and 2", "output": "4"},
        f"{WITH}\n\n### Instruction:\nAdd them.\n\n### Input:\n2 and 2\n\n### Response:\n",
    ),
    "without input": (
        {"instruction": "Say hi.", "input": "", "output": "hi"},
        f"{WITHOUT}\n\n### Instruction:\nSay hi.\n\n### Response:\n",
    ),
    "no column of inputs": (
        {"instruction": "Say hi.", "output": "hi"},
        f"{WITHOUT}\n\n### Instruction:\nSay hi.\n\n### Response:\n",
    ),
    "with a system prompt": (
        {"instruction": "Add them.", "input": "2 and 2", "output": "4", "system": "Be brief."},
        "Be brief.\n\n### Instruction:\nAdd them.\n\n### Input:\n2 and 2\n\n### Response:\n",
    ),
    "with earlier turns": (
        {"instruction": "Say hi.", "output": "hi", "history": [["Count.", "1 2 3"]]},
        f"{WITHOUT}\n\n### Instruction:\nCount.\n\n### Response:\n1 2 3EOS"
        "\n\n### Instruction:\nSay hi.\n\n### Response:\n",
    ),
}


@pytest.mark.parametrize("bos", [None, "<s>"])
@pytest.mark.parametrize(("row", "prompt"), CASES.values(), ids=CASES)
def test_a_row_has_the_prompt_and_the_tokens_of_axolotl(tmp_path, row, prompt, bos):
    made, _, _ = convert(tmp_path, {"a.jsonl": json.dumps(row)})
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template, tokenizer.bos_token = ALPACA, bos
    text = (bos or "") + prompt.replace("EOS", tokenizer.eos_token)
    given, answer = encode_answer(tokenizer, made[0]["prompt"], made[0]["completion"], made[0])
    assert tokenizer.decode(given) == text
    assert tokenizer.decode(answer) == row["output"] + tokenizer.eos_token
    # axolotl tokenises both together, masks as many tokens as the prompt has, and learns the end.
    whole = encode_conversation(tokenizer, made[0]["prompt"], made[0]["completion"], row=made[0])
    assert whole.ids == tokenizer.encode(text + row["output"] + tokenizer.eos_token, add_special_tokens=False)
    assert whole.learned == [False] * len(given) + [True] * len(answer)


GOLDEN = json.loads((Path(__file__).parent / "axolotl_alpaca.json").read_text())
"""What axolotl's AlpacaPromptTokenizingStrategy and AlpacaPrompter (0.18.0, run on this tokenizer) make of rows: token
ids, of which the last `learned` have a loss."""


@pytest.mark.parametrize("case", GOLDEN, ids=[case["row"]["instruction"] for case in GOLDEN])
@pytest.mark.parametrize("begins", [False, True])
def test_ids_and_mask_are_those_of_axolotls_own_code(tmp_path, case, begins):
    """Also where the tokenizer has a token for the beginning that it does not write itself."""
    made, _, _ = convert(tmp_path, {"a.jsonl": json.dumps(case["row"])})
    tokenizer = copy.deepcopy(make_tokenizer("chatml"))
    if begins:
        tokenizer.bos_token = "<|im_start|>"
    apply_chat(tokenizer, Chat(chat_template=ALPACA))
    encoded = encode_conversation(tokenizer, made[0]["prompt"], made[0]["completion"], row=made[0])
    assert encoded.ids == case["input_ids"]
    assert encoded.learned == [False] * (len(encoded.ids) - case["learned"]) + [True] * case["learned"]


def test_other_templates_have_instruction_and_input_as_one_text(tmp_path):
    made, _, _ = convert(tmp_path, {"a.jsonl": json.dumps(CASES["with input"][0])})
    tokenizer = make_tokenizer("chatml")
    given, _ = encode_answer(tokenizer, made[0]["prompt"], made[0]["completion"], made[0])
    assert "Add them.\n\n2 and 2" in tokenizer.decode(given)
