"""Completions with labels (KTO) and with ratings per attribute, from a file to a loss."""

import json

import pytest
import torch

from learning.models.policy import load_policy, save_policy
from schemas.errors import StepError
from schemas.stages.curate import Curate
from schemas.stages.data import Data
from schemas.stages.preference import Preference
from schemas.stages.reward_model import RewardModel
from tasks import reward_model
from tasks.context import Context
from tasks.curate import run as curate
from tasks.preference import run
from tests.tasks.data_stages import convert

LABELS = [
    ("1+1?", "2", True),
    ("2+2?", "five", False),
    ("3+3?", "It is 6.", True),
    ("4+4?", "9", False),
    ("5?", "5", 1),
]


def lines(rows):
    return "\n".join(map(json.dumps, rows))


def labelled(rows=LABELS):
    return {"a.jsonl": lines({"prompt": p, "completion": c, "label": label} for p, c, label in rows)}


def train(tmp_path, policy, **settings):
    base = {"kind": "preference", "model": "m", "data": "d", "max_steps": 1, "logging_steps": 1}
    stage = Preference.model_validate({**base, "validation_fraction": 0, **settings})
    (tmp_path / "run").mkdir()
    inputs = {"model": policy, "reference": tmp_path / "reference", "data": tmp_path / "work/outputs/data"}
    context = Context(inputs, tmp_path / "run", tmp_path / "checkpoints", seed=3)
    result = run(stage, context)
    point = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    return result, point


@pytest.fixture
def reference(tiny_policy, tmp_path):
    """A policy that differs from the tiny one, so that no log-ratio is zero."""
    with torch.no_grad():
        for parameter in tiny_policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    save_policy(tiny_policy, tmp_path / "reference")
    return tmp_path / "reference"


def test_the_loss_of_kto_on_labels_is_its_formula_over_two_models(tmp_path, tiny_policy_folder, reference):
    """Ethayarajh et al. 2024, eq. 7 and 8, as TRL computes it: the mean over completions, and a batch's KL."""
    convert(tmp_path, labelled(), emit="preference_pairs")
    use = [{"use": "kto", "beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5}]
    result, point = train(tmp_path, tiny_policy_folder, reference="r", loss=use)

    tokenizer = load_policy(tiny_policy_folder).tokenizer
    models = [load_policy(folder).model for folder in (tiny_policy_folder, reference)]

    def ratio(question, answer):
        prompt = [{"role": "user", "content": question}]
        given = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        both = [*prompt, {"role": "assistant", "content": answer}]
        whole = tokenizer.apply_chat_template(both, return_dict=False)
        end = len(whole) - whole[::-1].index(tokenizer.eos_token_id)
        ids, sums = torch.tensor([whole[:end]]), []
        for model in models:
            with torch.no_grad():
                logp = model(ids).logits.double().log_softmax(-1)[0]
            sums.append(sum(logp[i - 1, ids[0, i]] for i in range(len(given), end)))
        return sums[0] - sums[1]

    ratios = torch.stack([ratio(question, answer) for question, answer, _ in LABELS])
    others = [LABELS[(i + 1) % len(LABELS)][1] for i in range(len(LABELS))]
    kl = torch.stack([ratio(row[0], other) for row, other in zip(LABELS, others, strict=True)]).mean().clamp(min=0)
    good = torch.tensor([bool(label) for _, _, label in LABELS])
    desirable = 1.5 * (1 - torch.sigmoid(0.3 * (ratios[good] - kl)))
    undesirable = 0.5 * (1 - torch.sigmoid(0.3 * (kl - ratios[~good])))
    expected = float(torch.cat([desirable, undesirable]).mean())
    assert point["loss"] == pytest.approx(expected, abs=1e-5)
    assert point["rewards/chosen"] == pytest.approx(float(0.3 * ratios[good].mean()), abs=1e-4)
    assert point["rewards/rejected"] == pytest.approx(float(0.3 * ratios[~good].mean()), abs=1e-4)
    right = torch.cat([ratios[good] > 0, ratios[~good] < 0]).double().mean()
    assert point["rewards/accuracies"] == pytest.approx(float(right))
    assert result.metrics["pairs"] == len(LABELS)


@pytest.mark.parametrize("loss", ["kto", "bco"])
def test_labels_alone_teach_what_is_good(tmp_path, tiny_policy_folder, reference, loss):
    rows = [(f"{i}?", "ab"[i % 2] * (1 + i % 3), i % 2 == 0) for i in range(40)]
    convert(tmp_path, labelled(rows), emit="preference_pairs")
    settings = {"max_steps": 25, "learning_rate": 3e-3, "per_device_train_batch_size": 8, "validation_fraction": 0.2}
    result, _ = train(tmp_path, tiny_policy_folder, loss=[{"use": loss}], logging_steps=25, **settings)
    assert result.metrics["accuracy"] >= 0.9
    assert result.metrics["margin"] > 0.1


def test_only_losses_for_single_completions_take_labels(tmp_path, tiny_policy_folder, reference):
    convert(tmp_path, labelled(), emit="preference_pairs")
    with pytest.raises(StepError, match="5 of 5 rows have one completion with a label, and loss dpo compares two"):
        train(tmp_path, tiny_policy_folder, loss=[{"use": "kto"}, {"use": "dpo"}])
    stage = RewardModel.model_validate({"kind": "reward_model", "model": "m", "data": "d"})
    inputs = {"model": tiny_policy_folder, "data": tmp_path / "work/outputs/data"}
    context = Context(inputs, tmp_path / "rm", tmp_path / "checkpoints2", seed=3)
    with pytest.raises(StepError, match="it needs pairs"):
        reward_model.run(stage, context)


BAD_LABELS = {
    "maybe": ("maybe", "`label` is 'maybe'; it must be true or false"),
    "two": (2, "`label` is '2'"),
    "null": (None, "no `label`"),
    "list": ([True], r"`label` is '\[True\]'"),
}


@pytest.mark.parametrize(("label", "reason"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_a_label_that_is_none_is_reported(tmp_path, label, reason):
    with pytest.raises(StepError, match=rf"a\.jsonl, row 1: {reason}"):
        convert(tmp_path, labelled([("a", "b", label)]), emit="preference_pairs", format="labels")


def test_labels_may_be_texts_of_a_table_and_are_not_ignored_by_sft(tmp_path):
    content = "prompt,completion,label\na,b,true\nc,d,False\ne,f,1\n"
    rows, _, _ = convert(tmp_path, {"a.csv": content}, emit="preference_pairs")
    assert [len(row["chosen"]) for row in rows] == [1, 0, 1]
    assert [len(row["rejected"]) for row in rows] == [0, 1, 0]
    with pytest.raises(StepError, match="are completions with labels, good and bad ones; train on them with"):
        convert(tmp_path / "chat", {"a.csv": content})


RATED = [
    {"prompt": "2+2?", "response": "5", "helpfulness": 1, "verbosity": 0},
    {"prompt": "2+2?", "response": "4", "helpfulness": 4, "verbosity": 1},
    {"prompt": "2+2?", "response": "It is 4, as you see.", "helpfulness": 4, "verbosity": 4},
    {"prompt": "3+3?", "response": "6", "helpfulness": 4, "verbosity": 0},
    {"prompt": "3+3?", "response": "7", "helpfulness": 0, "verbosity": 0},
]


def test_rated_responses_of_a_prompt_are_a_pair_by_their_weighted_sum(tmp_path):
    weights = {"helpfulness": 1.0, "verbosity": -0.5}
    rows, result, _ = convert(tmp_path, {"a.jsonl": lines(RATED)}, emit="preference_pairs", ratings=weights)
    assert [(r["chosen"][0]["content"], r["rejected"][0]["content"], r["margin"]) for r in rows] == [
        ("4", "5", 2.5),
        ("6", "7", 4.0),
    ]
    assert [row["id"] for row in rows] == ["a.jsonl:1", "a.jsonl:4"]
    assert result.metrics["rows"] == result.metrics["kept"] == 2


BAD_RATINGS = {
    "no rating": ({**RATED[1], "helpfulness": None}, r"a\.jsonl, row 2: no `helpfulness`"),
    "no number": ({**RATED[1], "helpfulness": "good"}, r"a\.jsonl, row 2: `helpfulness` is no number: 'good'"),
    "no response": ({"prompt": "2+2?", "helpfulness": 1}, r"a\.jsonl, row 2: no `response`"),
    "same rating": ({**RATED[1], "helpfulness": 1}, r"a\.jsonl, row 1: all completions have score 1"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_RATINGS.values(), ids=BAD_RATINGS)
def test_ratings_that_do_not_fit_are_reported(tmp_path, bad, reason):
    files = {"a.jsonl": lines([RATED[0], bad])}
    with pytest.raises(StepError, match=reason):
        convert(tmp_path, files, emit="preference_pairs", ratings={"helpfulness": 1.0})


def test_ratings_need_weights(tmp_path):
    with pytest.raises(StepError, match="are ratings per attribute; give their weights"):
        convert(tmp_path, {"a.jsonl": lines(RATED)}, emit="preference_pairs")
    source = {"from": "path:x", "format": "ratings"}
    with pytest.raises(ValueError, match="needs their weights"):
        Data.model_validate({"kind": "data", "emit": "preference_pairs", "sources": [source]})
    with pytest.raises(ValueError, match="make preference pairs, not chat"):
        Data.model_validate({"kind": "data", "sources": [{"from": "path:x", "ratings": {"a": 1}}]})


def test_curation_keeps_rows_with_a_label_and_plain_text(tmp_path):
    contents = {"preference_pairs": labelled()["a.jsonl"], "chat": lines([{"text": "To be."}, {"text": "Or not."}])}
    for emit, content in contents.items():
        folder = tmp_path / emit
        convert(folder, {"a.jsonl": content}, emit=emit)
        (folder / "curated").mkdir()
        stage = Curate.model_validate({"kind": "curate", "data": "d", "decontaminate": None})
        context = Context({"data": folder / "work/outputs/data"}, folder / "curated", folder / "checkpoints", seed=0)
        result = curate(stage, context)
        assert result.metrics["kept"] == result.metrics["rows"] == content.count("\n") + 1
