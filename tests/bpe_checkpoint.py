"""A checkpoint as users have them: a BPE tokenizer, a chat template, and two layers with random weights."""

from collections.abc import Iterable
from pathlib import Path


def write_bpe_checkpoint(folder: Path, turns: Iterable[tuple[str, str]]) -> None:
    """Write `folder/model`, whose tokenizer was trained on (question, answer) turns, kept in `folder/texts`."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    from learning.data.rows import write_rows
    from learning.data.trained_tokenizers import bpe
    from learning.models.policy import Policy, save_policy, set_determinism

    texts = folder / "texts"
    texts.mkdir()
    more = {"answer": None, "family": "f", "metadata": None}
    chat = [
        {
            "id": str(i),
            "prompt": [{"role": "user", "content": question}],
            "completion": [{"role": "assistant", "content": answer}],
            **more,
        }
        for i, (question, answer) in enumerate(turns)
    ]
    write_rows(texts, "chat", chat)
    set_determinism(0, 1)
    tokenizer = bpe(data=texts, vocab_size=320)
    tokenizer.model_max_length = 512
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    save_policy(Policy(model, tokenizer, 512), folder / "model")
