"""Cross-entropy of completions against transformers' own, under every way to cut a batch."""

import pytest
import torch

from learning.data.chat import encode_completion, encode_prompt
from learning.data.examples import Example, encode_rows
from learning.models.crossentropy import choose_loss, compute_packed_loss, compute_padded_loss
from learning.models.packed import pack, packed_logprobs
from schemas.errors import StepError


def ragged(count=7, seed=0):
    g = torch.Generator().manual_seed(seed)
    sequences = []
    for _ in range(count):
        given, learned = torch.randint(1, 20, (2,), generator=g).tolist()
        sequences.append(Example(torch.randint(6, 100, (given + learned,), generator=g).tolist(), given))
    return sequences


def of_transformers(model, examples):
    """Mean over learned tokens, right-padded, labels −100 elsewhere."""
    width = max(len(e.ids) for e in examples)
    ids = torch.tensor([e.ids + [0] * (width - len(e.ids)) for e in examples])
    mask = torch.tensor([[1] * len(e.ids) + [0] * (width - len(e.ids)) for e in examples])
    labels = torch.tensor(
        [[-100] * e.num_given + e.ids[e.num_given :] + [-100] * (width - len(e.ids)) for e in examples]
    )
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("loss", [compute_packed_loss, compute_padded_loss])
def test_loss_and_gradient_are_those_of_transformers(tiny_policy, loss):
    model, examples = tiny_policy.model.double(), ragged()
    learned = sum(e.num_learned for e in examples)
    ours, theirs = loss(model, examples) / learned, of_transformers(model, examples)
    # transformers computes its loss in float32
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    torch.testing.assert_close(gradients(model, ours), gradients(model, theirs), atol=1e-6, rtol=0)


@pytest.mark.parametrize("cuts", [[7], [1] * 7, [3, 4], [1, 5, 1]])
@pytest.mark.parametrize("loss", [compute_packed_loss, compute_padded_loss])
def test_trap_1_the_gradient_does_not_depend_on_the_micro_batches(tiny_policy, cuts, loss):
    model, examples = tiny_policy.model, ragged()
    learned = sum(e.num_learned for e in examples)
    whole = gradients(model, of_transformers(model, examples))
    model.zero_grad()
    for part in torch.arange(7).split(cuts):
        (loss(model, [examples[i] for i in part]) / learned).backward()
    cut = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=0)


def test_trap_2_longer_rows_pad_nothing_into_the_loss(tiny_policy):
    """A token weighs the same beside a short row and beside a long one."""
    model, (first, *_) = tiny_policy.model, ragged()
    long = Example(list(range(6, 70)), 60)
    alone, other, both = (float(compute_padded_loss(model, rows).detach()) for rows in ([first], [long], [first, long]))
    assert both == pytest.approx(alone + other, abs=1e-5)


def test_trap_18_a_row_is_the_same_alone_packed_and_left_padded(tiny_policy):
    model, rows = tiny_policy.model, [e.ids for e in ragged(4)]
    packed, _ = packed_logprobs(model, pack(rows, [-1] * 4))
    for row, together in zip(rows, packed.split([len(r) for r in rows]), strict=True):
        ids, n = torch.tensor([row]), len(row)
        alone = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        left = torch.nn.functional.pad(ids, (5, 0))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (5, 0))
        position = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(left, attention_mask=mask, position_ids=position).logits[0, 5 : 5 + n - 1]
        padded = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert together[0] == 0
        torch.testing.assert_close(together[1:], alone, atol=1e-5, rtol=0)
        torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)


def test_trap_17_the_end_token_is_learned_once_and_padding_never(tiny_policy):
    tokenizer = tiny_policy.tokenizer
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    row = {"prompt": said("user", "1+1="), "completion": said("assistant", "<eos>2<eos>")}
    (example,) = encode_rows(tokenizer, [row], 64).kept
    learned = example.ids[example.num_given :]
    assert learned.count(tokenizer.eos_token_id) == 1
    assert learned[-1] == tokenizer.eos_token_id
    assert tokenizer.pad_token_id not in example.ids


@pytest.mark.parametrize("text", ["4", "a b\nc", "", " lead", "<assistant>x</s>", "~!@#$%^&*()_+", "12 + 3 = 15\n\n"])
def test_trap_16_what_is_learned_decodes_to_the_completion(tiny_policy, text):
    tokenizer = tiny_policy.tokenizer
    prompt = said("system", "be brief") + said("user", "why?\n")
    row = {"prompt": prompt, "completion": said("assistant", text)}
    (example,) = encode_rows(tokenizer, [row], 128).kept
    learned = example.ids[example.num_given :]
    assert tokenizer.decode(learned, skip_special_tokens=False) == text + "<eos>"
    assert example.num_learned == len(text) + 1
    assert example.ids == encode_prompt(tokenizer, prompt) + encode_completion(tokenizer, row["completion"])


def test_ids_of_prompt_and_completion_are_those_of_the_whole_conversation(tiny_policy):
    tokenizer = tiny_policy.tokenizer
    prompt, completion = said("user", "2+2=") + said("assistant", "4") + said("user", "+1="), said("assistant", "5")
    whole = tokenizer.encode(tokenizer.apply_chat_template(prompt + completion, tokenize=False))
    assert encode_prompt(tokenizer, prompt) + encode_completion(tokenizer, completion) == whole


def test_rows_too_long_are_dropped_and_counted(tiny_policy):
    rows = [{"prompt": said("user", "x"), "completion": said("assistant", "y" * n)} for n in (3, 30, 4)]
    encoded = encode_rows(tiny_policy.tokenizer, rows, 10)
    assert [len(e.ids) for e in encoded.kept] == [8, 9]
    assert encoded.dropped == 1
    with pytest.raises(StepError, match=r"all 3 rows are longer than 7 tokens \(the shortest has 8\)"):
        encode_rows(tiny_policy.tokenizer, rows, 7)


def test_unknown_characters_are_counted(tiny_policy):
    rows = [{"prompt": said("user", "é"), "completion": said("assistant", "→a")}]
    assert encode_rows(tiny_policy.tokenizer, rows, 64).unknown == 2


def test_a_prompt_the_template_refuses_is_named(tiny_policy):
    with pytest.raises(StepError, match="roles are system, user and assistant, not tool"):
        encode_prompt(tiny_policy.tokenizer, said("tool", "7"))
    with pytest.raises(StepError, match="one assistant message"):
        encode_completion(tiny_policy.tokenizer, said("user", "7"))


def test_an_architecture_that_leaks_is_padded_and_never_packed(tiny_policy):
    from transformers import AutoModelForCausalLM, MambaConfig

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=102, hidden_size=16, num_hidden_layers=1, state_size=4, pad_token_id=0)
    mamba, examples = AutoModelForCausalLM.from_config(config).eval(), ragged(3)
    assert choose_loss(tiny_policy.model, packing=True) is compute_packed_loss
    loss = choose_loss(mamba, packing=False)
    assert loss is compute_padded_loss
    learned = sum(e.num_learned for e in examples)
    ours, theirs = loss(mamba, examples) / learned, of_transformers(mamba, examples)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    with pytest.raises(StepError, match=r"rows cannot be kept apart \(mamba: layers of linear_attention"):
        choose_loss(mamba, packing=True)


def said(role, content):
    return [{"role": role, "content": content}]
