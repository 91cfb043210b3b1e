"""Sequence classifiers of transformers as reward models: the scores of transformers' own forward pass."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from learning.data.tokenizers import characters
from learning.models.reward_model import load_reward_model
from learning.rewards.models import learned, load_cached_reward_model
from schemas.errors import StepError
from tests.models.families import COMMON, FAMILIES

HISTORY = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes?"},
    {"role": "user", "content": "2"},
]
PROMPTS = [[{"role": "user", "content": "abc"}], HISTORY]
ROWS = [{"prompt": PROMPTS[i]} for i in (0, 1, 0, 0)]
TEXTS = ["xy", "a longer answer", "", "xyz"]


def save_classifier(folder, kind, *, labels=1, pad="pad_token", **more):
    """Write a random classifier of a type with a tokenizer; return the tokenizer."""
    torch.manual_seed(3)
    tokenizer = characters()
    tokenizer.model_max_length = 200
    tokenizer.pad_token = getattr(tokenizer, pad)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    keys = {**COMMON, **FAMILIES[kind], "vocab_size": len(tokenizer), **ids, "num_labels": labels, **more}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, **keys))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


@torch.no_grad()
def compute_own_scores(folder, tokenizer, side):
    """Scores by transformers: rendered conversations in one batch, padded on a side, eager attention."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    conversations = [
        [*row["prompt"], {"role": "assistant", "content": text}] for row, text in zip(ROWS, TEXTS, strict=True)
    ]
    rendered = tokenizer.apply_chat_template(conversations, tokenize=False)
    batch = tokenizer(rendered, add_special_tokens=False, padding=True, padding_side=side, return_tensors="pt")
    assert (batch["attention_mask"] == 0).any()
    positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return model(batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=positions).logits[:, 0]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("llama", {"pad": "eos_token"}),  # the token that ends the turn is padding, and not the one that is read
        ("qwen2", {}),
        ("gemma2", {"attn_logit_softcapping": 1.0, "sliding_window": 8}),
    ],
    ids=["llama", "llama-pad-eos", "qwen2", "gemma2"],
)
def test_a_classifier_scores_as_in_transformers(tmp_path, kind, more):
    tokenizer = save_classifier(tmp_path, kind, **more)
    ours = torch.tensor(learned(ROWS, TEXTS, model=str(tmp_path)))
    load_cached_reward_model.cache_clear()
    for side in ("left", "right"):
        torch.testing.assert_close(ours, compute_own_scores(tmp_path, tokenizer, side), atol=1e-5, rtol=0)
    assert float(ours.std()) > 1e-2


def test_token_lists_are_read_at_their_last_token_that_is_no_padding(tmp_path):
    pad = save_classifier(tmp_path, "qwen2").pad_token_id
    judge = load_reward_model(tmp_path)
    model = judge.policy.model
    with torch.no_grad():
        ours = judge.rewards([[5, 6], [7, pad]], [[[8, pad, pad], [9]], [[], [pad], [4, pad, 5]]])
        paths = [[5, 6, 8, pad, pad], [5, 6, 9], [7, pad], [7, pad, pad], [7, pad, 4, pad, 5]]
        own = torch.cat([model(torch.tensor([ids])).logits[:, 0] for ids in paths])
    torch.testing.assert_close(ours, own, atol=1e-5, rtol=0)


def test_rewards_of_unknown_scale_are_not_normalised(tmp_path):
    save_classifier(tmp_path, "llama")
    with pytest.raises(StepError, match=r"without reward_model\.json the scale .* unknown; write `normalise: none`"):
        learned(ROWS, TEXTS, model=str(tmp_path), normalise="sigmoid")
    load_cached_reward_model.cache_clear()


def test_other_folders_are_refused_by_name(tmp_path, tiny_policy_folder):
    save_classifier(tmp_path / "three", "llama", labels=3)
    with pytest.raises(StepError, match=r"three: a classifier with 3 labels; a reward model has one"):
        load_reward_model(tmp_path / "three")
    with pytest.raises(StepError, match="Qwen3ForCausalLM gives no reward: name a sequence classifier"):
        load_reward_model(tiny_policy_folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StepError, match=r"empty: no reward model here: neither reward_model\.json"):
        load_reward_model(tmp_path / "empty")
    save_classifier(tmp_path / "cut", "llama")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"\0" * 30)
    with pytest.raises(StepError, match="cut: "):
        load_reward_model(tmp_path / "cut")


def test_weights_of_another_shape_are_refused(tmp_path):
    save_classifier(tmp_path, "llama")
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(StepError, match=r"weights do not fit config\.json"):
        load_reward_model(tmp_path)
