import numpy as np
import torch

from learning.data.chat import encode_prompt
from learning.evaluation.answer_likelihood import measure_answer_logprobs
from learning.evaluation.metrics import answer_logprob


def row(question, answer):
    return {"id": question, "prompt": [{"role": "user", "content": question}], "answer": answer}


def test_the_mean_over_the_answers_tokens_is_that_of_a_plain_forward(tiny_policy):
    logprobs = measure_answer_logprobs(tiny_policy, [row("1 + 1", "two"), row("b", "c")])
    for (question, answer), value in zip([("1 + 1", "two"), ("b", "c")], logprobs, strict=True):
        prompt = encode_prompt(tiny_policy.tokenizer, row(question, answer)["prompt"])
        ids = tiny_policy.tokenizer.encode(answer)
        total = 0.0
        for i, token in enumerate(ids):
            with torch.no_grad():
                logits = tiny_policy.model(torch.tensor([prompt + ids[:i]])).logits[0, -1]
            total += float(logits.double().log_softmax(-1)[token])
        assert abs(total / len(ids) - value) < 1e-5


def test_what_cannot_be_measured_is_nan(tiny_policy):
    logprobs = measure_answer_logprobs(tiny_policy, [row("a", None), row("a", ""), row("a", "b" * 500), row("a", "b")])
    assert np.isnan(logprobs).tolist() == [True, True, True, False]
    assert answer_logprob(logprobs) is logprobs
