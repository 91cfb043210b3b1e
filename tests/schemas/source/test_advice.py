"""Keys of other trainers: what they are called here, or where their effect is set."""

import pytest

from schemas.renamed import find_renamed_key
from schemas.source.advice import ELSEWHERE, explain_foreign_key
from schemas.stages.preference import Preference
from schemas.stages.rl import Rl
from schemas.stages.sft import Sft


@pytest.mark.parametrize(
    ("kind", "word", "advice"),
    [
        (Sft, "max_seq_length", "posttrain calls this `max_length`"),
        (Sft, "output_dir", "posttrain path STEP"),
        (Rl, "per_device_train_batch_size", "`generation_batch_size`"),
        (Rl, "gradient_accumulation_steps", "`max_tokens_per_micro_batch`"),
        (Rl, "reward_funcs", "posttrain calls this `rewards`"),
        (Rl, "beta", "`loss_terms`"),
        (Preference, "beta", "`loss: {use: dpo, beta: 0.1}`"),
        (Rl, "num_train_epochs", "`max_steps`"),
        (Sft, "load_in_8bit", "use `load_in_4bit: true`"),
        (Sft, "bnb_4bit_use_double_quant", "posttrain calls this `use_bnb_nested_quant`"),
        (Sft, "dataset_name", "`data: hub:org/name`"),
        (Rl, "top_k", "samples by `temperature` alone"),
        (Rl, "wandb_log_unique_prompts", "leave it out: MLflow and the report get all metrics"),
        (Preference, "label_smoothing", "`loss: {use: dpo, label_smoothing: 0.1}`"),
        (Preference, "max_completion_length", "`max_length`"),
        (Sft, "train_dataset", "`data: path:rows.jsonl`"),
        (Sft, "neftune_noise_alpha", "NEFTune"),
        (Sft, "fsdp", "strategy: fsdp2"),
        (Sft, "streaming", "rows are always read as a stream"),
    ],
)
def test_a_key_of_trl_is_explained(kind, word, advice):
    assert advice in explain_foreign_key(word, list(kind.model_fields))


def test_no_key_of_every_stage_is_explained_away():
    shared = Sft.model_fields.keys() & Rl.model_fields.keys() & Preference.model_fields.keys()
    assert not shared & ELSEWHERE.keys()
    assert not [word for word in ELSEWHERE if find_renamed_key(word, list(Rl.model_fields))]
    assert explain_foreign_key("colour", list(Sft.model_fields)) is None
