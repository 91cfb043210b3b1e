"""WebAgent-R1: earlier pages are placeholders, and each turn is trained in the context that was there.

Visits are dictated; the orders, the environment, the contexts, the rewards and the advantages are those of the recipe.
Not shown here: that the warm-up is needed, which is measured.
"""

import copy
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages
from learning.batch.batch_layout import forest
from learning.data.chat import decode, encode_completion, encode_prompt
from learning.lookup import bind
from learning.models.packed import choose_forward, packed_logprobs
from learning.models.policy import Policy
from learning.toy_tasks.web_shop import Visit, act, read_order, show_page, solve
from schemas.recipe.load import load_recipe
from tests.papers.dictated import TOKENS, play

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "webagent-r1.yaml"
LOADED = load_recipe(RECIPE)
STAGES = LOADED.stages
TRAINED, ZERO, REPORT = STAGES["trained"], STAGES["zero"], STAGES["report"]
ROWS = bind(STAGES["orders"].problems[0])()
ROW = next(row for row in ROWS if row["family"] == "web5")
PLAN = solve(*read_order(ROW), Visit())
LOST = [*PLAN[:3], "click nothing", "click shop", "click buy", "click shop", "click shop"]
"""Eight actions, four of which the page does not allow; nothing is bought."""


@pytest.fixture
def policy(tiny_policy):
    """Only its tokenizer matters; contexts of any length fit."""
    return Policy(tiny_policy.model, tiny_policy.tokenizer, 10 * TOKENS)


def list_pages(actions):
    """The pages that a visitor sees after each action, by the rules of the shop."""
    shop, _ = read_order(ROW)
    now, pages = Visit(), []
    for action in actions:
        after = act(shop, now, action)
        pages.append(show_page(shop, after or now) if after else f"?\n{show_page(shop, now)}")
        now = after or now
    return pages


def write_messages(actions, pages, placeholder):
    """The context of the turn after these actions: every earlier page is the placeholder, or (None) what it was."""
    shown = [page if placeholder is None else placeholder for page in pages[:-1]] + pages[-1:]
    pairs = zip(actions, shown, strict=True)
    turns = [({"role": "assistant", "content": a}, {"role": "user", "content": page}) for a, page in pairs]
    return [*ROW["prompt"], *(message for pair in turns for message in pair)]


def test_only_the_newest_page_is_shown_in_full_and_all_actions_are(policy):
    """At every turn, and so at the fourth."""
    (sample,), contexts = play(policy, TRAINED, ROW, [PLAN])
    pages = list_pages(PLAN)
    assert (sample.finish, sample.reward, len(contexts[0])) == ("stop", 1.0, 5)
    fourth = contexts[0][3]
    assert fourth.count("(page)") == 2
    assert pages[2] in fourth
    assert not any(page in fourth for page in pages[:2])
    assert [fourth.index(action) for action in PLAN[:3]] == sorted(fourth.index(action) for action in PLAN[:3])
    for number in range(1, 5):
        expected = encode_prompt(policy.tokenizer, write_messages(PLAN[:number], pages[:number], "(page)"))
        assert contexts[0][number].endswith(decode(policy.tokenizer, expected))


def split_turns(sample):
    """The token ids of each turn of a sample."""
    ids, place = [], 0
    for turn in sample.turns:
        ids.append(list(sample.completion_ids[place : place + turn.sampled]))
        place += turn.sampled + turn.observed
    return ids


def read_alone(model, tokenizer, turns, actions, pages, placeholder):
    """Log-probabilities of every turn's tokens behind its own context, rendered and computed by itself."""
    found = []
    for number, ids in enumerate(turns):
        messages = write_messages(actions[:number], pages[:number], placeholder) if number else ROW["prompt"]
        prompt = encode_prompt(tokenizer, messages)
        lp = model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
        found += [float(lp[len(prompt) + i - 1, token]) for i, token in enumerate(ids)]
    return found


def test_every_turn_is_trained_in_the_context_that_was_there(policy):
    """Recomputed in each turn's compressed context they are equal; in the full history they are not."""
    (sample,), _ = play(policy, TRAINED, ROW, [PLAN])
    torch.manual_seed(0)
    model = type(policy.model)(copy.deepcopy(policy.model.config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4)
        choose_forward(model)
        batch = forest([sample])
        ours = packed_logprobs(model, batch.packed)[0][batch.sampled_T].tolist()
        given = (model, policy.tokenizer, split_turns(sample), PLAN, list_pages(PLAN))
        compressed, whole = read_alone(*given, "(page)"), read_alone(*given, None)
    assert ours == pytest.approx(compressed, abs=1e-5)
    first_two = sum(map(len, split_turns(sample)[:2]))
    assert whole[:first_two] == pytest.approx(compressed[:first_two], abs=1e-5)
    assert max(abs(a - b) for a, b in zip(whole[first_two:], compressed[first_two:], strict=True)) > 1e-2


def test_only_actions_are_trained_on_and_an_episode_has_one_advantage(policy):
    """Of two visits, one of which carries out the order: ± half of it over the deviation, on all tokens of actions."""
    samples, _ = play(policy, TRAINED, ROW, [PLAN, LOST])
    assert [(one.reward, one.finish, one.num_turns) for one in samples] == [(1.0, "stop", 5), (0.0, "length", 8)]
    assert [turn.ok for turn in samples[1].turns].count(False) == 4
    batch = forest(samples)
    inputs = {port.path: Path("p") for port in LOADED.ports("trained")}
    algorithm, rows = bind_algorithm(TRAINED, inputs), [sample.row for sample in samples]
    advantage_T = with_advantages(algorithm, batch, 0, states={}, rows=rows).sampled("advantage")
    size = 0.5 / (torch.tensor([1.0, 0.0]).std().item() + 1e-4)
    for path, sign, actions in ((0, 1, PLAN), (1, -1, LOST)):
        own_T = advantage_T[batch.path_T == path]
        written = [encode_completion(policy.tokenizer, [{"role": "assistant", "content": text}]) for text in actions]
        assert own_T.tolist() == pytest.approx([sign * size] * sum(map(len, written)))


def test_success_alone_is_rewarded(policy):
    """Whatever the visit does before: a product on the right page and the right options earn nothing."""
    wrong = [*PLAN[:-2], PLAN[-1]]  # bought without what was to be chosen last
    samples, _ = play(policy, TRAINED, ROW, [LOST, [*PLAN[:2], "click shop", *PLAN], wrong])
    assert [sample.reward for sample in samples] == [0.0, 1.0, 0.0]
    assert [sample.finish for sample in samples] == ["length", "stop", "stop"]
    assert [use.use for use in TRAINED.rewards] == ["environment.earned"]


def test_zero_lacks_the_warm_up_and_nothing_else():
    trained, zero = (stage.model_dump() for stage in (TRAINED, ZERO))
    assert (trained.pop("model"), zero.pop("model")) == ("cold_start", "base")
    assert trained == zero
    assert STAGES["cold_start"].kind == "sft"
    assert STAGES["cold_start"].model == "base"
    assert STAGES[STAGES["cold_start"].data].data == "lessons"  # without what the report asks
    context = {"use": "newest_observation", "keep": 1, "placeholder": "(page)"}
    lessons = STAGES["lessons"].problems[0].options["env"]
    assert TRAINED.env.context.model_dump() == REPORT.env.context.model_dump() == context
    assert lessons["context"] == context


def test_the_report_plays_orders_that_were_not_trained_on_with_four_and_eight_actions():
    trained, reported = ROWS, bind(REPORT.tasks[0])()
    assert not {row["id"] for row in trained} & {row["id"] for row in reported}
    limits = {
        name: REPORT.envs[name].max_turns if name in REPORT.envs else REPORT.env.max_turns for name in REPORT.models
    }
    assert limits == {"start": 8, "start_short": 4, "zero": 8, "trained": 8, "trained_short": 4}
    assert {name: str(model) for name, model in REPORT.models.items()} == {
        "start": "cold_start",
        "start_short": "cold_start",
        "zero": "zero",
        "trained": "trained",
        "trained_short": "trained",
    }
    assert {row["family"] for row in reported} == {"web2", "web3", "web4", "web5"}
