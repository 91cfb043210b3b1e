import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from learning.data.chat import decode, encode_prompt
from learning.data.examples import encode_row, encode_rows
from learning.data.rows import read_rows, write_rows
from learning.generation.engines.torch import Engine
from learning.models.policy import load_policy
from learning.samples.engine_protocol import Request, Sampling
from schemas.errors import StepError
from schemas.stages.sft import Sft
from tasks.context import Context
from tasks.sft import run


def stage(**more):
    base = {"kind": "sft", "model": "m", "data": "d", "max_steps": 6, "save_steps": 2, "logging_steps": 2}
    more = {"per_device_train_batch_size": 4, "learning_rate": 5e-3, **more}
    return Sft.model_validate({**base, **more})


def row(question, answer):
    rest = {"id": question, "answer": answer, "family": "sums", "metadata": "{}"}
    prompt = [{"role": "user", "content": question}]
    return {**rest, "prompt": prompt, "completion": [{"role": "assistant", "content": answer}]}


@pytest.fixture
def inputs(tiny_policy_folder, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [row(f"{a}+{b}=", f"{a + b}" + "." * (a % 3 * 4)) for a in range(5) for b in range(3)]
    write_rows(folder, "chat", rows)
    return {"model": tiny_policy_folder, "data": folder}


def model_of(context):
    return load_policy(context.folder / "outputs" / "model").model


VARIANTS = {
    "full": {},
    "packing": {"packing": True, "max_length": 40, "per_device_train_batch_size": 1},
    "lora": {"use_peft": True, "lora_dropout": 0.3},
    "qlora": {"use_peft": True, "load_in_4bit": True, "use_bnb_nested_quant": True},
}


@pytest.mark.parametrize("more", VARIANTS.values(), ids=VARIANTS)
def test_trap_24_a_continued_run_is_bit_identical(at, more, training):
    more = {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "max_steps": 7, **more}
    whole = at("whole")
    result = run(stage(**more), whole)
    for attempt, step in enumerate((5, 3, 7)):
        with pytest.raises(training.Stopped):
            run(stage(**more), at("broken", attempt, training.stop_at(step)))
        if attempt == 0:  # the latest checkpoint is damaged: the one before it is used
            latest = sorted(whole.folder.parent.glob("broken-checkpoints/step-*"))[-1] / "tensors.safetensors"
            data = bytearray(latest.read_bytes())
            data[-1] ^= 1
            latest.write_bytes(bytes(data))
    last = at("broken", 3)
    assert run(stage(**more), last) == result
    assert training.files(last) == training.files(whole)
    assert training.curve(last) == training.curve(whole)


def test_equal_inputs_give_equal_bytes_and_another_seed_does_not(at, training):
    one, two = at("one"), at("two")
    assert run(stage(), one) == run(stage(), two)
    assert training.files(one) == training.files(two)
    other = replace(at("other"), seed=4)
    run(stage(), other)
    assert training.files(other)["model/model.safetensors"] != training.files(one)["model/model.safetensors"]


def test_accumulation_and_packing_give_the_weights_of_one_large_batch(at, training):
    """One step over all 15 rows, however they are cut; AdamW would amplify any difference in the gradient's sign."""
    cuts = {
        "whole": {"per_device_train_batch_size": 15},
        "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
        "packed": {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "packing": True,
            "max_length": 32,
        },
    }
    trained = {}
    for name, cut in cuts.items():
        context = at(name)
        run(stage(max_steps=1, **cut), context)
        trained[name] = (model_of(context), training.curve(context)[0])
    for name in ("accumulated", "packed"):
        assert trained[name][1]["loss"] == pytest.approx(trained["whole"][1]["loss"], abs=1e-6)
        assert trained[name][1]["grad_norm"] == pytest.approx(trained["whole"][1]["grad_norm"], rel=1e-5)
        pairs = zip(trained[name][0].parameters(), trained["whole"][0].parameters(), strict=True)
        assert sum(float((a - b).detach().abs().sum()) for a, b in pairs) < 1e-2 * 21888 * 5e-3


def test_the_first_step_is_adamw_by_hand(at, inputs, training):
    """Step 1 of Adam moves every weight by learning_rate · g / (|g| + ε)."""
    context = at("a")
    run(stage(max_steps=1, per_device_train_batch_size=15, max_grad_norm=None, weight_decay=0.1), context)
    before, tokenizer = load_policy(inputs["model"]).model, load_policy(inputs["model"]).tokenizer
    examples = encode_rows(tokenizer, read_rows(inputs["data"], "chat"), 128).kept
    total = sum(e.num_learned for e in examples)
    loss = 0.0
    for e in examples:
        labels = torch.tensor([[-100] * e.num_given + e.ids[e.num_given :]])
        loss = loss + before(input_ids=torch.tensor([e.ids]), labels=labels).loss * e.num_learned / total
    loss.backward()
    assert training.curve(context)[0]["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    for old, new in zip(before.parameters(), model_of(context).parameters(), strict=True):
        # where the gradient is far above rounding, its sign and size are beyond doubt
        sure = old.grad.abs() > 1e-5
        decayed = old * (1 - 5e-3 * 0.1) if old.ndim >= 2 else old
        wanted = decayed - 5e-3 * old.grad / (old.grad.abs() + 1e-8)
        torch.testing.assert_close(new[sure].detach(), wanted[sure].detach(), atol=2e-5, rtol=1e-4)


def test_adapters_train_and_their_base_does_not(at, inputs):
    context = at("lora")
    result = run(stage(use_peft=True, lora_r=4, max_steps=4), context)
    out = context.folder / "outputs" / "model"
    assert (
        load_file(out / "base" / "model.safetensors").keys() == load_file(inputs["model"] / "model.safetensors").keys()
    )
    assert files_of(out / "base") == files_of(inputs["model"])
    adapter = load_file(out / "adapter_model.safetensors")
    assert sum(t.numel() for t in adapter.values()) == result.metrics["trained_parameters"] < 21888
    assert all(float(t.abs().max()) > 0 for name, t in adapter.items() if "lora_B" in name)
    assert not [file for file in out.rglob("*.json") if str(inputs["model"].parent) in file.read_text()]
    tokenizers = {name: data for name, data in files_of(out / "base").items() if name.startswith(("tok", "chat"))}
    assert len(tokenizers) == 3
    assert {name: (out / name).read_bytes() for name in tokenizers} == tokenizers


def test_a_folded_adapter_has_the_logits_of_an_unfolded_one(at):
    context = at("lora")
    run(stage(use_peft=True, max_steps=4), context)
    out = context.folder / "outputs" / "model"
    base, folded = load_policy(out / "base").model, load_policy(out)
    adapter = load_file(out / "adapter_model.safetensors")
    ids = torch.arange(6, 40)[None]
    with torch.no_grad():
        plain, merged = base(ids).logits, folded.model(ids).logits
        for name, module in base.named_modules():
            if f"base_model.model.{name}.lora_A.weight" in adapter:
                down, up = (adapter[f"base_model.model.{name}.lora_{x}.weight"] for x in "AB")
                module.register_forward_hook(lambda m, x, y, down=down, up=up: y + 32 / 16 * (x[0] @ down.T) @ up.T)
        torch.testing.assert_close(merged, base(ids).logits, atol=1e-5, rtol=0)
    assert float((merged - plain).abs().max()) > 0.1
    assert folded.max_length == 128


def test_adapters_on_adapters_start_from_the_folded_model(at, inputs):
    first = at("first")
    run(stage(use_peft=True, max_steps=4), first)
    second_inputs = {**inputs, "model": first.folder / "outputs" / "model"}
    second = Context(second_inputs, first.folder.parent / "second", first.folder.parent / "c2", seed=3)
    second.folder.mkdir()
    run(stage(use_peft=True, max_steps=1), second)
    base = load_policy(second.folder / "outputs" / "model" / "base").model
    pairs = zip(base.parameters(), model_of(first).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_epochs_steps_and_dropped_rows_are_counted(at):
    result = run(stage(max_steps=-1, num_train_epochs=1.5, max_length=12, per_device_train_batch_size=2), at("a"))
    # 15 rows: <user>a+b=<eos><assistant>c<eos> is 9 tokens, and 4 or 8 more for a = 1, 4 and 2
    rows = 15 - 9
    assert (result.metrics["rows"], result.metrics["dropped_rows"]) == (rows, 9)
    assert result.notices[0].startswith("9 of 15 rows (60.0%) are longer than max_length: 12 tokens and were dropped")
    assert result.metrics["steps"] == math.ceil(1.5 * rows / 2)
    assert result.metrics["tokens"] == 9 * 2 * result.metrics["steps"]


def test_the_learning_rate_follows_its_schedule(at, training):
    context = at("a")
    run(stage(max_steps=8, warmup_ratio=0.25, lr_scheduler_type="linear", logging_steps=1), context)
    rates = [point["learning_rate"] / 5e-3 for point in training.curve(context)]
    assert rates == pytest.approx([1 / 2, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_an_empty_training_set_is_reported(at):
    with pytest.raises(StepError, match=r"all 15 rows are longer than 5 tokens \(the shortest has 9\)"):
        run(stage(max_length=5), at("a"))


def test_the_loss_is_on_the_turns_that_train_on_names(at, tiny_policy_folder, tmp_path):
    folder = tmp_path / "turns"
    folder.mkdir()
    first = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "two"}]
    write_rows(folder, "chat", [{**(whole := row("2+3=", "5")), "prompt": [*first, *whole["prompt"]]}])
    policy = load_policy(tiny_policy_folder)
    ids = torch.tensor([policy.tokenizer.encode("<user>1+1=<eos><assistant>two<eos><user>2+3=<eos><assistant>5<eos>")])
    logits = policy.model(input_ids=ids).logits.detach()
    logp = logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    for turns, places in {"last": [18, 19], "all": [7, 8, 9, 10, 18, 19]}.items():
        learned = policy.tokenizer.decode(ids[0, places]).replace(" ", "")
        assert learned == ("two<eos>5<eos>" if turns == "all" else "5<eos>")
        context = replace(at(turns), inputs={"model": tiny_policy_folder, "data": folder})
        result = run(stage(max_steps=1, logging_steps=1, train_on=turns), context)
        want = -float(logp[[place - 1 for place in places]].mean())
        assert result.metrics["loss"] == pytest.approx(want, abs=1e-5)


def test_layers_that_do_not_exist_are_refused(at):
    with pytest.raises(StepError, match=r"lora_target_modules: .*attention_qkv"):
        run(stage(use_peft=True, lora_target_modules=["attention_qkv"]), at("a"))


def test_a_tiny_model_learns_its_rows_by_heart_and_stops(at, inputs):
    context = at("a")
    result = run(stage(max_steps=150, per_device_train_batch_size=15, learning_rate=1e-2, save_steps=1000), context)
    assert result.metrics["loss"] < 0.02
    policy = load_policy(context.folder / "outputs" / "model")
    prompts = [encode_prompt(policy.tokenizer, row(q, "")["prompt"]) for q in ("3+2=", "1+1=", "4+0=")]
    sampled = Engine(policy).generate([Request(ids, 1, 0) for ids in prompts], Sampling(0.0, 16))
    assert [decode(policy.tokenizer, g[0].token_ids) for g in sampled] == ["5", "2....", "4...."]
    assert {g[0].finish for g in sampled} == {"stop"}


def files_of(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_rows_longer_than_the_model_holds_are_refused_before_training(at):
    with pytest.raises(StepError, match="max_length: 129 is more than the 128 tokens that the model allows"):
        run(stage(max_length=129), at("a"))


EVALUATED = {"validation_fraction": 0.3, "eval_steps": 2, "load_best_model_at_end": True, "learning_rate": 0.05}


@pytest.mark.parametrize("more", [{}, {"use_peft": True, "lora_dropout": 0.3}], ids=["full", "lora"])
def test_held_out_rows_are_evaluated_and_the_best_weights_published(inputs, same_when_interrupted, tmp_path, more):
    made = stage(**EVALUATED, max_steps=9, **more)
    points = [point for point in same_when_interrupted(run, made, (5, 7)) if "eval_loss" in point]
    assert [point["step"] for point in points] == [2, 4, 6, 8, 9]
    best = min(points, key=lambda point: point["eval_loss"])
    # The published model has that loss on the rows that were not trained on, by a formula of its own.
    folder = tmp_path / "whole-0"
    policy = load_policy(folder / "outputs" / "model")
    used = {entry["id"] for entry in pq.read_table(folder / "rows_used.parquet").to_pylist()}
    losses = []
    for entry in read_rows(inputs["data"], "chat"):
        example = encode_row(policy.tokenizer, entry)
        if entry["id"] in used:
            continue
        ids = torch.tensor([example.ids])
        labels = ids.masked_fill(~torch.tensor([example.learned]), -100)
        logits = policy.model(input_ids=ids).logits[0, :-1].detach()
        losses.append(torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="none")[labels[0, 1:] >= 0])
    assert 2 <= len(losses) <= 8
    assert float(torch.cat(losses).mean()) == pytest.approx(best["eval_loss"], rel=1e-4)


def test_the_weights_of_the_highest_token_accuracy_are_published(inputs, at, training, tmp_path):
    context = at("accurate")
    made = stage(**EVALUATED, metric_for_best_model="eval_mean_token_accuracy", max_steps=9)
    result = run(made, context)
    points = [point for point in training.curve(context) if "eval_loss" in point]
    best = max(points, key=lambda point: point["eval_mean_token_accuracy"])
    assert best != min(points, key=lambda point: point["eval_loss"])
    assert result.metrics["published_step"] == best["step"]
    assert result.metrics["eval_mean_token_accuracy"] == best["eval_mean_token_accuracy"]
    policy = load_policy(context.folder / "outputs" / "model")
    used = {entry["id"] for entry in pq.read_table(context.folder / "rows_used.parquet").to_pylist()}
    right = []
    for example in (encode_row(policy.tokenizer, e) for e in read_rows(inputs["data"], "chat") if e["id"] not in used):
        guess = policy.model(input_ids=torch.tensor([example.ids])).logits[0, :-1].argmax(-1).tolist()
        right += [g == i for g, i, learned in zip(guess, example.ids[1:], example.learned[1:], strict=True) if learned]
    assert sum(right) / len(right) == pytest.approx(best["eval_mean_token_accuracy"])


def test_training_stops_when_the_held_out_loss_no_longer_falls(inputs, at):
    context = at("stopped")
    made = stage(**{**EVALUATED, "eval_steps": 1, "learning_rate": 0.3}, early_stopping_patience=2, max_steps=60)
    result = run(made, context)
    assert result.metrics["steps"] == result.metrics["published_step"] + 2 < 60
