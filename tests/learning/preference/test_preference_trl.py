"""The losses of pairs against TRL's own trainer, on the same model, reference and pairs."""

import copy
import warnings

import pytest
import torch

from learning.data.chat import encode_completion, encode_prompt
from learning.lookup import bind
from learning.models.sharded_model import Trained
from learning.preference.batches import Pair
from learning.preference.loss import Term, add_gradient, compute_logprobs
from schemas.use import PairLossUse

ROWS = [
    {"prompt": "p1", "chosen": "yes.", "rejected": "nono"},
    {"prompt": "question", "chosen": "a longer answer", "rejected": "b"},
    {"prompt": "p1", "chosen": "ok", "rejected": "not ok"},
]
CASES = {
    "sigmoid": {"use": "dpo", "beta": 0.2},
    "hinge": {"use": "hinge", "beta": 0.2},
    "ipo": {"use": "ipo", "beta": 0.2},
    "exo_pair": {"use": "exo", "beta": 0.2, "label_smoothing": 0.1},
    "nca_pair": {"use": "nca", "beta": 0.2},
    "robust": {"use": "robust", "beta": 0.2, "label_smoothing": 0.1},
    "sppo_hard": {"use": "sppo_hard", "eta": 5.0},
    "aot": {"use": "aot", "beta": 0.2, "label_smoothing": 0.1},
    "aot_unpaired": {"use": "aot_unpaired", "beta": 0.2, "label_smoothing": 0.1},
    "apo_zero": {"use": "apo_zero", "beta": 0.2},
    "apo_down": {"use": "apo_down", "beta": 0.2},
    "discopop": {"use": "discopop", "beta": 0.2},
    "sft": {"use": "nll", "per_token": True},
    "sigmoid_norm": {"use": "dpo_norm", "beta": 0.2},
}


def message(role, text):
    return [{"role": role, "content": text}]


@pytest.fixture(scope="module")
def trl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("trl")


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_trl(trl, tiny_policy, tmp_path):
    from datasets import Dataset

    data = Dataset.from_list(
        [
            {"prompt": message("user", r["prompt"])} | {s: message("assistant", r[s]) for s in ("chosen", "rejected")}
            for r in ROWS
        ]
    )
    model = tiny_policy.model
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = trl.DPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            beta=0.2,
            report_to=[],
            per_device_train_batch_size=3,
            gradient_checkpointing=False,
            disable_dropout=False,
        )
        trainer = trl.DPOTrainer(
            model=model, ref_model=reference, args=options, train_dataset=data, processing_class=tiny_policy.tokenizer
        )
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(3)])
    pairs = [ours(tiny_policy.tokenizer, row) for row in ROWS]
    with torch.no_grad():
        ref_P2 = compute_logprobs(reference, pairs)
    columns = {f"{s}_{of}_B": ref_P2[:, i] for i, s in enumerate(("chosen", "rejected")) for of in ("ref", "prev")}
    columns |= {
        f"{s}_tokens_B": torch.tensor([float(len(getattr(p, s))) for p in pairs]) for s in ("chosen", "rejected")
    }
    for name, use in CASES.items():
        trainer.loss_types, trainer.loss_weights = [name], [1.0]
        trainer.label_smoothing = use.get("label_smoothing", 0.0)
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = trainer.compute_loss(model, dict(batch))
        theirs.backward()
        wanted = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        terms = [Term(bind(PairLossUse(**use)), 1.0)]
        loss, _ = add_gradient(terms, Trained(model), pairs, {**columns, "states": {}}, 0, 10_000)
        assert loss == pytest.approx(theirs.item(), rel=1e-5, abs=1e-5), name
        for mine, other in zip((p.grad for p in model.parameters()), wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-5 * max(1.0, float(other.abs().max())), msg=name)


def ours(tokenizer, row):
    sides = [encode_completion(tokenizer, message("assistant", row[s])) for s in ("chosen", "rejected")]
    return Pair("x", encode_prompt(tokenizer, message("user", row["prompt"])), *sides, None)
