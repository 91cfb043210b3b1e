"""Networks beside a policy: columns, losses and gradients against plain forward passes and formulas in float64."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config

from learning.auxiliary_networks.heads import load_network
from learning.batch.batch_layout import single_turn
from learning.batch.columns import ColumnView
from learning.models.checkpoint import load_latest, save_checkpoint
from learning.models.policy import Policy, load_policy, save_policy
from learning.models.reward_model import make_reward_model
from learning.rl.auxiliary_models import AuxiliaryModel
from learning.samples.engine_protocol import Generation
from schemas.auxiliary import Auxiliary as Block
from schemas.errors import StepError
from schemas.stages.rl import Rl
from schemas.training import LoRA

PROMPTS = [[5, 6, 7], [8, 9]]
COMPLETIONS = [[[10, 11, 12, 13], [14]], [[15, 16], [10, 17, 18, 19, 20]]]
REWARDS = [1.0, 0.0, 1.0, 0.0]
PATHS = [(p, c) for p, group in zip(PROMPTS, COMPLETIONS, strict=True) for c in group]
TARGETS = {
    "state": {"use": "monte_carlo", "gamma": 0.9},
    "token": "outcome",
    "action": {"use": "temporal_difference", "gamma": 0.9},
    "path": "outcome",
    "likelihood": "outcome",
}
LOSSES = {"state": "squared", "token": "logistic", "action": "huber", "path": "squared", "likelihood": "logistic"}


@pytest.fixture
def exact(tiny_policy):
    """A tiny policy in float64, of an architecture that computes nothing in float32 on the way."""
    size = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(vocab_size=len(tiny_policy.tokenizer), **size, **drop)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()
    return Policy(model, tiny_policy.tokenizer, 32)


def auxiliary(policy, head, *, budget=4096, seed=0, inputs=None, **block):
    stage = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1, "advantage": ["center"]}
    parts = {
        "ratio": "token",
        "policy_loss": "clipped",
        "loss_aggregation": "token_mean",
        "max_tokens_per_micro_batch": budget,
    }
    block = {"head": head, "target": TARGETS[head], "loss": LOSSES[head], "learning_rate": 1e-2, **block}
    stage = Rl.model_validate({**stage, **parts, "max_grad_norm": None})
    return scramble(AuxiliaryModel("aux", Block(**block), policy, stage, inputs or {}, seed))


def scramble(one, seed=1):
    """A head, or weights, that say something."""
    generator = torch.Generator().manual_seed(seed)
    if one.reads == "likelihood":
        for parameter in one.network.model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    else:
        for parameter in one.network.head.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return one


def batch(finishes=("stop", "length", "stop", "length"), order=(0, 1, 2, 3)):
    ends = iter(finishes)
    groups = [[Generation(ids, [-1.0] * len(ids), next(ends)) for ids in group] for group in COMPLETIONS]
    made = single_turn(PROMPTS, groups).with_paths(reward=torch.tensor(REWARDS, dtype=torch.float64))
    return made.take(list(order))


def ready(one, made):
    return one.add_targets(one.add_values(made), 0)


def hidden(body, ids):
    return body(input_ids=torch.tensor([ids])).last_hidden_state[0]


def plain(one):
    """For every completion: values that are trained, and by suffix what others see, by a forward pass of its own."""
    for prompt, ids in PATHS:
        n = len(prompt)
        if one.reads == "likelihood":
            both = [
                m(input_ids=torch.tensor([prompt + ids])).logits[0, n - 1 : -1]
                for m in (one.network.model, one.network.start)
            ]
            lp, start = (b.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0] for b in both)
            each = one.network.beta * (lp - start)
            yield each.sum()[None], {"": each}
            continue
        values = one.network.head(hidden(one.network.body, prompt + ids))
        if one.reads == "path":
            yield values[-1], {}
        elif one.reads == "token":
            yield values[n:, 0], {"": values[n:, 0]}
        elif one.reads == "state":
            yield values[n - 1 : -1, 0], {"": values[n - 1 : -1, 0], "_end": values[-1]}
        else:
            taken = values[n - 1 : -1].gather(1, torch.tensor(ids)[:, None])[:, 0]
            more = {"_max": values[n - 1 : -1].amax(-1), "_mean": values[n - 1 : -1].mean(-1)}
            ends = {"_end_max": values[-1:].amax(-1), "_end_mean": values[-1:].mean(-1)}
            yield taken, {"": taken, **more, **ends}


HEADS = list(TARGETS)


@pytest.mark.parametrize("budget", [1, 9, 4096])
@pytest.mark.parametrize("head", HEADS)
def test_columns_are_those_of_plain_forward_passes(exact, head, budget):
    one = auxiliary(exact, head, budget=budget)
    made = one.add_values(batch())
    with torch.no_grad():
        want = list(plain(one))
    view = ColumnView(made)
    for suffix in want[0][1]:
        got = view[f"aux{suffix}_P"] if suffix.startswith("_end") else view[f"aux{suffix}_T"]
        torch.testing.assert_close(got, torch.cat([columns[suffix] for _, columns in want]), atol=1e-12, rtol=0)
    if head == "path":
        torch.testing.assert_close(view["aux_P"], torch.cat([values for values, _ in want]), atol=1e-12, rtol=0)
        torch.testing.assert_close(view["aux_T"], view["aux_P"][made.path_T])
    assert "aux" in view["auxiliary_T"]


def expected_targets(one, columns):
    """Targets of each completion, written out."""
    targets = []
    for (_, ids), reward, finish, (_, more) in zip(PATHS, REWARDS, batch().paths["truncated"], columns, strict=True):
        if one.reads == "state":
            targets.append([0.9 ** (len(ids) - 1 - t) * reward for t in range(len(ids))])
        elif one.reads == "action":
            after = [*more["_max"].tolist()[1:], more["_end_max"].item() if finish else 0.0]
            targets.append([0.9 * a + (reward if t == len(ids) - 1 else 0.0) for t, a in enumerate(after)])
        else:
            targets.append([reward] * (1 if one.of_paths else len(ids)))
    return torch.tensor([t for path in targets for t in path], dtype=torch.float64)


def formula(head, value, target):
    if LOSSES[head] == "squared":
        return ((value - target) ** 2 / 2).mean()
    if LOSSES[head] == "huber":
        gap = (value - target).abs()
        return torch.where(gap <= 1, gap**2 / 2, gap - 0.5).mean()
    return -(target * value.sigmoid().log() + (1 - target) * (-value).sigmoid().log()).mean()


@pytest.mark.parametrize("head", HEADS)
def test_loss_and_gradient_are_those_of_the_formula(exact, head):
    one = auxiliary(exact, head)
    made = ready(one, batch())
    columns = list(plain(one))
    target = expected_targets(one, columns)
    torch.testing.assert_close(one._of(made, one.aim), target, atol=1e-12, rtol=0)
    loss = formula(head, torch.cat([values for values, _ in columns]), target)
    parameters = [p for p in one.network.parameters() if p.requires_grad]
    want = torch.autograd.grad(loss, parameters, allow_unused=True)
    one.update(made, 0)
    assert one.metrics(made)["aux/loss"] == pytest.approx(loss.item(), abs=1e-12)
    for parameter, grad in zip(parameters, want, strict=True):
        mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(mine, torch.zeros_like(mine) if grad is None else grad, atol=1e-12, rtol=0)
    assert max(float(g.abs().max()) for g in want if g is not None) > 1e-4


def gradient(policy, head, made, **how):
    one = auxiliary(policy, head, **how)
    one.update(ready(one, made), 0)
    grads = [p.grad.flatten() for p in one.network.parameters() if p.requires_grad and p.grad is not None]
    return torch.cat(grads)


@pytest.mark.parametrize("head", HEADS)
def test_trap_01_neither_micro_batches_nor_order_change_the_gradient(tiny_policy, head):
    want = gradient(tiny_policy, head, batch())
    for budget, order in ((1, (0, 1, 2, 3)), (8, (3, 1, 0, 2)), (4096, (2, 0, 3, 1))):
        got = gradient(tiny_policy, head, batch(order=order), budget=budget)
        assert float((got - want).norm() / want.norm()) < 1e-6


@pytest.mark.parametrize("head", HEADS)
def test_the_policy_shares_no_weights(tiny_policy, head):
    before = [p.clone() for p in tiny_policy.model.parameters()]
    gradient(tiny_policy, head, batch())
    assert all(torch.equal(a, b) for a, b in zip(before, tiny_policy.model.parameters(), strict=True))
    assert all(p.grad is None for p in tiny_policy.model.parameters())


@pytest.mark.parametrize("head", HEADS)
def test_what_is_not_selected_or_unknown_adds_nothing(tiny_policy, head):
    want = gradient(tiny_policy, head, batch().take([0, 2]))
    torch.testing.assert_close(
        gradient(tiny_policy, head, batch(), token_mask=["finished"]), want, atol=1e-6, rtol=1e-4
    )
    unknown = batch()
    unknown.paths["reward"][[1, 3]] = torch.nan
    if head != "action":  # whose targets on the way look at the next state, not at the reward
        torch.testing.assert_close(gradient(tiny_policy, head, unknown), want, atol=1e-6, rtol=1e-4)
    one = auxiliary(tiny_policy, head, token_mask=["finished"])
    made = ready(one, batch(["length"] * 4))
    one.update(made, 0)
    assert "aux/loss" not in one.metrics(made)


def test_a_slow_copy_follows_and_says_what_is_ahead(exact):
    target = {"use": "temporal_difference", "gamma": 0.9}
    one = auxiliary(exact, "state", target=target, target_network={"sync_steps": 2, "mixup_alpha": 0.25})
    old = [p.clone() for p in one.slow.parameters()]
    made = ready(one, batch())
    with torch.no_grad():
        # The copy was made before the head was scrambled: it says 0, so that targets are the rewards alone.
        last = torch.tensor([0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1]).double()
    torch.testing.assert_close(made.sampled("target:aux"), made.paths["reward"][made.path_T] * last)
    one.refresh(0)
    assert all(torch.equal(a, b) for a, b in zip(old, one.slow.parameters(), strict=True))
    one.refresh(1)
    for before, now, fast in zip(old, one.slow.parameters(), one.network.parameters(), strict=True):
        torch.testing.assert_close(now, before + 0.25 * (fast - before))


@pytest.mark.parametrize("head", HEADS)
def test_trap_24_a_continued_one_is_bit_identical(tiny_policy, tmp_path, head):
    more = {"target_network": {"mixup_alpha": 0.5}} if head == "action" else {}
    whole, broken, again = (auxiliary(tiny_policy, head, **more) for _ in range(3))
    scramble(again, seed=5)
    for step in range(4):
        whole.update(ready(whole, batch()), step)
        whole.refresh(step)
        if step == 1:
            save_checkpoint(tmp_path, 2, {k: t.clone() for k, t in whole.tensors().items()}, whole.state())
    _, tensors, state = load_latest(tmp_path)
    again.load(tensors, state)
    for step in (2, 3):
        again.update(ready(again, batch()), step)
        again.refresh(step)
    assert whole.tensors().keys() == again.tensors().keys()
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name
    assert not torch.equal(next(iter(broken.tensors().values())), next(iter(whole.tensors().values())))


@pytest.mark.parametrize("head", ["state", "token", "likelihood"])
def test_what_is_published_says_the_same_when_it_is_loaded(tiny_policy, tmp_path, head):
    one = auxiliary(tiny_policy, head, **({"heads": 2} if head == "state" else {}))
    one.save(tiny_policy, tmp_path / "made")
    one.save(tiny_policy, tmp_path / "again")
    files = [p for p in sorted((tmp_path / "made").rglob("*")) if p.is_file()]
    assert all(p.read_bytes() == (tmp_path / "again" / p.relative_to(tmp_path / "made")).read_bytes() for p in files)
    assert not [p for p in files if p.suffix in (".bin", ".pt", ".pkl")]
    inputs = {"auxiliary_models.aux.model": tmp_path / "made"}
    more = {"heads": 2} if head == "state" else {}
    read = Block(head=head, model="made", **more)
    stage = one.stage
    loaded = AuxiliaryModel("aux", read, tiny_policy, stage, inputs, 9)
    assert torch.equal(ColumnView(loaded.add_values(batch()))["aux_T"], ColumnView(one.add_values(batch()))["aux_T"])
    assert (loaded.optimizer, loaded.tensors(), loaded.state()) == (None, {}, [])
    _, dressed = load_network(tmp_path / "made")
    assert dressed.max_length == 128
    assert dressed.tokenizer.get_vocab() == tiny_policy.tokenizer.get_vocab()
    if head != "likelihood":
        assert dressed.model.config.num_labels == one.block.heads


def test_where_the_weights_may_start(tiny_policy, tmp_path):
    judge = make_reward_model(tiny_policy, None)
    torch.nn.init.normal_(judge.policy.model.score.weight)
    judge.save(tmp_path / "judge", LoRA())
    one = auxiliary(tiny_policy, "token", inputs={"auxiliary_models.aux.model": tmp_path / "judge"}, model="judge")
    fresh = AuxiliaryModel(
        "aux", one.block, tiny_policy, one.stage, {"auxiliary_models.aux.model": tmp_path / "judge"}, 0
    )
    got = ColumnView(fresh.add_values(batch()))["aux_T"][[3, 4, 6, 11]]
    want = judge.rewards(PROMPTS, COMPLETIONS).detach().double()
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    save_policy(tiny_policy, tmp_path / "plain")
    own = AuxiliaryModel(
        "aux", one.block, tiny_policy, one.stage, {"auxiliary_models.aux.model": tmp_path / "plain"}, 0
    )
    assert ColumnView(own.add_values(batch()))["aux_T"].tolist() == [0.0] * 12
    auxiliary(tiny_policy, "state", heads=2).save(tiny_policy, tmp_path / "two")
    with pytest.raises(StepError, match="2 value"):
        AuxiliaryModel(
            "aux",
            Block(head="state", model="x"),
            tiny_policy,
            one.stage,
            {"auxiliary_models.aux.model": tmp_path / "two"},
            0,
        )
    block = Block(head="likelihood", model="x")
    with pytest.raises(StepError, match="head: state"):
        AuxiliaryModel("aux", block, tiny_policy, one.stage, {"auxiliary_models.aux.model": tmp_path / "two"}, 0)
    with pytest.raises(StepError, match=r"auxiliary.json is missing"):
        load_network(tmp_path / "plain")
    assert load_policy(tmp_path / "plain").max_length == 128


def test_a_network_whose_body_is_not_whole_is_refused(tiny_policy, tmp_path):
    auxiliary(tiny_policy, "state").save(tiny_policy, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {n: t for n, t in weights.items() if "up_proj" not in n}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(StepError, match=r"weights do not fit config\.json"):
        load_network(tmp_path)
