import json

import pytest
import torch

from learning.models.policy import load_policy
from schemas.errors import StepError
from schemas.stages.preference import Preference
from tasks.context import Context
from tasks.preference import run
from tests.tasks.data_stages import convert

USER = {"role": "user", "content": "2+2?"}


def said(text):
    return {"role": "assistant", "content": text}


def pairs_of(folder, row, **source):
    return convert(folder, {"a.jsonl": json.dumps(row)}, emit="preference_pairs", **source)[0]


SAME = {
    "texts": {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    "messages": {"prompt": [USER], "chosen": [said("4")], "rejected": [said("5")]},
    "implicit prompt": {"chosen": [USER, said("4")], "rejected": [USER, said("5")]},
    "prompt twice": {"prompt": "2+2?", "chosen": [USER, said("4")], "rejected": [USER, said("5")]},
    "sharegpt": {
        "chosen": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}],
        "rejected": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "5"}],
    },
    "scored": {
        "instruction": "2+2?",
        "completions": [
            {"response": "5", "overall_score": 1},
            {"response": "4", "overall_score": "8.5"},
            {"response": "?", "overall_score": 3},
        ],
    },
}


@pytest.mark.parametrize("row", SAME.values(), ids=SAME)
def test_every_format_gives_the_same_pair(tmp_path, row):
    (pair,) = pairs_of(tmp_path, row)
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ([USER], [said("4")], [said("5")])
    assert pair["margin"] == (7.5 if "completions" in row else None)


def test_scores_are_margin_and_metadata(tmp_path):
    (pair,) = pairs_of(tmp_path, SAME["texts"] | {"score_chosen": 3, "score_rejected": 1.5, "source": "x"})
    assert pair["margin"] == 1.5
    assert json.loads(pair["metadata"]) == {"source": "x", "chosen_score": 3.0, "rejected_score": 1.5}


def test_a_common_beginning_is_the_prompt(tmp_path):
    turns = [USER, said("4"), {"role": "user", "content": "sure?"}]
    (pair,) = pairs_of(tmp_path, {"chosen": [*turns, said("yes")], "rejected": [*turns, said("no")]})
    assert (pair["prompt"], pair["chosen"]) == (turns, [said("yes")])


def test_episodes_are_pairs_of_several_messages(tmp_path):
    """Without a prompt they part where their messages do, but always at a turn of the assistant."""
    for folder in "123":
        (tmp_path / folder).mkdir()
    seen, hidden = ({"role": "user", "content": text} for text in ("a door", "a wall"))
    sides = {"chosen": [USER, said("look"), seen, said("open")], "rejected": [USER, said("look"), hidden, said("wait")]}
    (pair,) = pairs_of(tmp_path / "1", sides)
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ([USER], sides["chosen"][1:], sides["rejected"][1:])
    sides["rejected"][2] = seen
    (pair,) = pairs_of(tmp_path / "2", sides)
    assert (pair["prompt"], pair["chosen"]) == (sides["chosen"][:3], [said("open")])
    (pair,) = pairs_of(tmp_path / "3", {"prompt": [USER], **sides})
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ([USER], sides["chosen"][1:], sides["rejected"][1:])


BAD = {
    "equal": ({"prompt": "a", "chosen": "b", "rejected": "b"}, "`chosen` and `rejected` are equal"),
    "empty": ({"prompt": "a", "chosen": " ", "rejected": "b"}, "`chosen` is empty"),
    "no prompt": ({"chosen": "a", "rejected": "b"}, "no `prompt`, and `chosen` and `rejected` are no conversations"),
    "other prompts": (
        {"chosen": [USER, said("4")], "rejected": [{"role": "user", "content": "?"}, said("5")]},
        "begin with different messages",
    ),
    "another prompt": (SAME["prompt twice"] | {"prompt": "3+3?"}, "`prompt` is not the first question of `chosen`"),
    "no last word": (
        {"chosen": [USER, said("4"), USER], "rejected": [USER, said("5")]},
        "`chosen` does not begin and end with a message of the assistant after the prompt",
    ),
    "prompt elsewhere": (
        {"prompt": [USER, said("4")], "chosen": [USER, said("4")], "rejected": [USER, said("5")]},
        "`prompt` is not what `chosen` and `rejected` begin with",
    ),
    "prompt alone": (
        {"prompt": [USER], "chosen": [USER], "rejected": [USER, said("5")]},
        "`chosen` does not begin and end with a message of the assistant after the prompt",
    ),
    "margin": (SAME["texts"] | {"margin": "much"}, "`margin` is no number: 'much'"),
    "equal scores": (
        {"prompt": "a", "completions": [{"response": "b", "score": 1}, {"response": "c", "score": 1}]},
        "all completions have score 1, so none is preferred",
    ),
    "one completion": ({"prompt": "a", "completions": [{"response": "b", "score": 1}]}, "at least two completions"),
    "no score": ({"prompt": "a", "completions": [{"response": "b"}] * 2}, "completion 1 has no score"),
}


@pytest.mark.parametrize(("row", "reason"), BAD.values(), ids=BAD)
def test_a_pair_that_does_not_fit_is_reported(tmp_path, row, reason):
    with pytest.raises(StepError, match=rf"a\.jsonl, row 1: .*{reason}"):
        pairs_of(tmp_path, row)


def test_the_first_loss_of_dpo_on_a_file_is_that_of_two_models(tmp_path, tiny_policy_folder, tiny_policy):
    """The policy differs from the reference, so that the loss is not log 2."""
    from learning.models.policy import save_policy

    reference = tmp_path / "reference"
    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    save_policy(tiny_policy, reference)
    rows = [SAME["texts"], {"chosen": [USER, said("It is 4.")], "rejected": [USER, said("five")]}]
    files = {"a.jsonl": "\n".join(map(json.dumps, rows))}
    convert(tmp_path, files, emit="preference_pairs")
    settings = {"kind": "preference", "model": "m", "data": "d", "reference": "r", "max_steps": 1, "logging_steps": 1}
    stage = Preference.model_validate({**settings, "validation_fraction": 0, "loss": [{"use": "dpo", "beta": 0.3}]})
    inputs = {"model": tiny_policy_folder, "reference": reference, "data": tmp_path / "work/outputs/data"}
    (tmp_path / "run").mkdir()
    loss = run(stage, Context(inputs, tmp_path / "run", tmp_path / "checkpoints", seed=3)).metrics["loss"]

    tokenizer = load_policy(tiny_policy_folder).tokenizer
    models = [load_policy(folder).model for folder in (tiny_policy_folder, reference)]

    def ratio(answer):
        """The log-ratio of an answer and the end of its turn, under policy and reference."""
        given = tokenizer.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
        whole = tokenizer.apply_chat_template([USER, said(answer)], return_dict=False)
        end = len(whole) - whole[::-1].index(tokenizer.eos_token_id)
        ids, sums = torch.tensor([whole[:end]]), []
        for model in models:
            with torch.no_grad():
                logp = model(ids).logits.double().log_softmax(-1)[0]
            sums.append(sum(logp[i - 1, ids[0, i]] for i in range(len(given), end)))
        return sums[0] - sums[1]

    margins = torch.stack([ratio(good) - ratio(bad) for good, bad in (("4", "5"), ("It is 4.", "five"))])
    expected = -torch.nn.functional.logsigmoid(0.3 * margins).mean()
    assert loss == pytest.approx(float(expected), abs=1e-5)
