"""COS(M+O)S: curiosity is an inverted U lowered by incoherence, values are backed up in a tree, and ORPO needs no
reference model.

Not shown: what people think of the stories. The paper's exact index of curiosity is unsure; ours is a bell over the
surprisal, and what is proven is its shape.
"""

import math
from pathlib import Path

import pytest
import torch

from learning.evaluation.searches import Node, mcts
from learning.lookup import bind
from learning.preference.columns import list_bases
from learning.preference.likelihoods import orpo
from learning.preference.loss import bind_losses, collect_asked
from learning.rewards.curiosity import compute_value
from learning.toy_tasks.stories import count_broken_rules
from schemas.recipe.load import load_recipe
from schemas.use import RewardUse
from tasks.synthesize import make_pairs

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "cos-mo-s.yaml"


def stages():
    return load_recipe(RECIPE, profile="tiny").stages


def curious():
    return stages()["report"].rewards[0].options


def test_moderate_surprise_is_worth_more_than_none_and_than_too_much():
    moderate, width = curious()["moderate"], curious()["width"]
    low, best, high = (compute_value(s, 0, moderate, width, 1.0) for s in (0.0, moderate, 3 * moderate))
    assert best > low
    assert best > high
    rising = [compute_value(moderate * k / 10, 0, moderate, width, 1.0) for k in range(21)]
    assert rising[:11] == sorted(rising[:11])
    assert rising[10:] == sorted(rising[10:], reverse=True)


def test_what_cannot_be_lowers_the_value():
    moderate, width = curious()["moderate"], curious()["width"]
    values = [compute_value(moderate, broken, moderate, width, 1.0) for broken in (0, 1, 2)]
    assert values == [1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("story", "sentence", "broken"),
    [
        ("ann dies.", "ann sings.", 1),
        ("ann dies.", "bob meets ann.", 1),
        ("ann dies.", "bob sings.", 0),
        ("bob finds the key.", "ann finds the key.", 1),
        ("bob finds the key.", "bob loses the key.", 0),
        ("bob finds the key.\nbob loses the key.", "ann finds the key.", 0),
        ("bob finds the key.", "ann loses the key.", 1),
        ("ann sings.", "xx yy.", 1),
        ("ann dies.\nbob finds the map.", "ann finds the map.", 2),
    ],
)
def test_rules_of_the_world(story, sentence, broken):
    assert count_broken_rules(story.split("\n"), sentence) == broken


def test_the_reward_is_the_value_of_the_measured_surprisal(tiny_policy, tiny_policy_folder):
    """The model's own surprisal, read off its logits, goes into the same curve; a dead character costs the penalty."""
    from learning.data.chat import encode_completion, encode_prompt

    row = {"prompt": [{"role": "user", "content": "ann dies."}]}
    texts = ["bob sings.", "ann sings."]
    use = RewardUse(use="curiosity.moderate", model="p", moderate=5.0, width=2.0, faults=["stories.broken_rules"])
    reward = bind(use, "r", {"r.model": tiny_policy_folder})
    rewards = reward.ask(0, {"rows": [row] * 2, "completions": texts})
    for text, value, broken in zip(texts, rewards, (0, 1), strict=True):
        prompt = encode_prompt(tiny_policy.tokenizer, row["prompt"])
        ids = prompt + encode_completion(tiny_policy.tokenizer, [{"role": "assistant", "content": text}])
        with torch.no_grad():
            lp = tiny_policy.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        surprisal = -sum(float(lp[t - 1, ids[t]]) for t in range(len(prompt), len(ids))) / (len(ids) - len(prompt))
        assert value == pytest.approx(math.exp(-(((surprisal - 5) / 2) ** 2) / 2) - broken, abs=1e-5)
    # Each fault costs the penalty.
    twice = use.model_copy(update={"faults": ["stories.broken_rules"] * 2})
    harder = bind(twice, "r", {"r.model": tiny_policy_folder}).ask(0, {"rows": [row] * 2, "completions": texts})
    assert harder == pytest.approx([rewards[0], rewards[1] - 1], abs=1e-5)


def test_two_leaves_under_one_root_back_up_their_mean():
    root = Node({"id": "p", "prompt": [{"role": "user", "content": "ann sings."}]})
    root.expand([{"text": t, "score": s, "finished": True} for t, s in (("a", 0.8), ("b", 0.4))])
    assert (root.value, root.visits) == (pytest.approx(0.6), 2)


def test_equal_sentences_are_one_child_and_one_that_did_not_end_is_not_continued():
    root = Node({"id": "p", "prompt": [{"role": "user", "content": "ann sings."}]})
    made = [("a", 0.8, False), ("b", 0.2, True), ("a", 0.8, False)]
    root.expand([{"text": text, "score": score, "finished": ended} for text, score, ended in made])
    assert [child.made["text"] for child in root.children] == ["a", "b"]
    assert (root.value, root.visits) == (pytest.approx(0.5), 2)
    assert root.select(0.0, 3) is root.children[1]


def test_the_search_of_the_recipe_pairs_siblings_of_high_and_low_value():
    from learning.evaluation.sampled_answers import AnswerSample

    stage = stages()["rounds-1-tree"]
    search = bind(stage.search)
    assert search.function is mcts
    problem = {"id": "p", "prompt": [{"role": "user", "content": "ann sings."}], "metadata": "{}"}
    worth, asked = {"ann dies.": 0.1, "bob sleeps.": 0.5, "eve finds the map.": 0.9}, []

    def ask(rows):
        asked.extend(row["prompt"][0]["content"].split("\n")[1:] for row in rows)
        return [[AnswerSample(text, "stop") for text in worth] for _ in rows]

    tried = search([problem], ask, lambda rows, texts: [worth[text] for text in texts])
    # The best sentence first; then the second best, whose bound of 0.5 + ½√ln 6 is above 0.6 + ½√(ln 6/4); then, two
    # levels down, the best sentence after the best.
    best = "eve finds the map."
    assert asked == [[], [best], ["bob sleeps."], [best, best]]
    pairs = make_pairs(stage, tried)
    first = pairs[0]
    assert first["prompt"][0]["content"] == "ann sings."
    assert (first["chosen"][0]["content"], first["rejected"][0]["content"]) == ("eve finds the map.", "ann dies.")
    # A sentence is worth the mean of all that was found from it on, over two levels: (0.9 + 1.5 + 1.5)/7.
    assert first["margin"] == pytest.approx(3.9 / 7 - 0.1)
    margins = {pair["prompt"][0]["content"]: pair["margin"] for pair in pairs}
    assert margins[f"ann sings.\n{best}"] == pytest.approx((0.9 + 1.5) / 4 - 0.1)
    assert margins["ann sings.\nbob sleeps."] == pytest.approx(0.9 - 0.1)
    depths = {pair["prompt"][0]["content"].count("\n") for pair in pairs}
    assert depths <= {0, 1, 2}
    assert len(pairs) == stage.search.options["simulations"]


def test_a_story_grows_by_as_many_sentences_as_the_recipe_says():
    """With simulations enough to exhaust the tree: three levels of two, none below; every past is visited once."""
    from learning.evaluation.sampled_answers import AnswerSample

    search, asked = stages()["rounds-1-tree"].search, []

    def ask(rows):
        asked.extend(row["prompt"][0]["content"].count("\n") for row in rows)
        return [[AnswerSample(text, "stop") for text in ("a", "b")] for _ in rows]

    problem = {"id": "p", "prompt": [{"role": "user", "content": "ann sings."}], "metadata": "{}"}
    options = {**search.options, "simulations": 50}
    tried = mcts([problem], ask, lambda rows, texts: [0.5] * len(texts), **options)
    assert sorted(asked) == [0, 1, 1, 2, 2, 2, 2]
    assert len(tried) == 2 + 4 + 8


def test_what_is_seldom_visited_is_looked_at_by_the_logarithm_of_its_parents_visits():
    root = Node({"id": "p", "prompt": [{"role": "user", "content": "s"}]})
    root.expand([{"text": t, "score": 0.5, "finished": True} for t in "abc"])
    root.children[0].back_up(0.5)
    for child, visits in zip(root.children, (2, 1, 1), strict=True):
        assert child.promise(0.5) == pytest.approx(0.5 + 0.5 * math.sqrt(math.log(4) / visits))


@pytest.mark.parametrize("profile", ["tiny", "full"])
def test_plain_sampling_has_as_many_sentences_and_no_search(profile):
    made = load_recipe(RECIPE, profile=profile).stages
    for number in (1, 2):
        tree, sample = made[f"rounds-{number}-tree"], made[f"plain-{number}-sample"]
        assert sample.num_generations == tree.search.options["simulations"] * tree.num_generations
        assert sample.search.use == "samples"
        ignored = {"search", "num_generations", "model"}
        assert sample.model_dump(exclude=ignored) == tree.model_dump(exclude=ignored)
        tuned, plain = (
            made[f"{name}-{number}-tune"].model_dump(exclude={"model", "data"}) for name in ("rounds", "plain")
        )
        assert tuned == plain


def test_without_a_search_a_pair_is_the_best_and_the_worst_next_sentence():
    from learning.evaluation.sampled_answers import AnswerSample

    stage = stages()["plain-1-sample"]
    problem = {"id": "p", "prompt": [{"role": "user", "content": "ann sings."}], "metadata": "{}"}
    worth = {"ann dies.": 0.1, "bob sleeps.": 0.5, "eve finds the map.": 0.9}
    tried = bind(stage.search)(
        [problem],
        lambda rows: [[AnswerSample(text, "stop") for text in worth] for _ in rows],
        lambda rows, texts: [worth[text] for text in texts],
    )
    (pair,) = make_pairs(stage, tried)
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("eve finds the map.", "ann dies.")
    assert pair["margin"] == pytest.approx(0.8)


def test_your_own_rewards_say_what_is_incoherent():
    given = [f"vars.{name}=path:./{name}" for name in ("model", "prompts", "held_out")]
    made = load_recipe(RECIPE, profile="own", overrides=[*given, "vars.faults=[tone.kind]"]).stages
    for stage in (made["plots"], made["report"]):
        assert stage.rewards[0].options["faults"] == ["tone.kind"]
    assert made["rounds-1-tree"].rewards[1].options["faults"] == ["tone.kind"]


def test_orpo_loads_no_reference_and_has_the_papers_numbers():
    stage = stages()["rounds-1-tune"]
    terms = bind_losses(stage, {})
    assert terms[0].function.function is orpo
    assert list_bases(collect_asked(terms)) == []
    chosen_P, rejected_P = (3 * torch.tensor([p], dtype=torch.float64).log() for p in (0.5, 0.2))
    three = torch.tensor([3.0], dtype=torch.float64)
    whole = orpo(chosen_P, rejected_P, three, three, beta=1.0)
    nll = math.log(2)
    odds = math.log((0.5 / 0.5) / (0.2 / 0.8))
    assert odds == pytest.approx(1.3863, abs=5e-5)
    assert whole.item() - nll == pytest.approx(0.2231, abs=5e-5)
    assert whole.item() == pytest.approx(nll + math.log1p(math.exp(-odds)), abs=1e-14)
    # The recipe's own weight of the odds, and lengths that differ: both sides are means over their tokens.
    assert stage.loss[0].options["beta"] == 0.5
    one, five = torch.ones(1, dtype=torch.float64), torch.full((1,), 5.0, dtype=torch.float64)
    own = terms[0].function(chosen_P / 3, rejected_P / 3 * 5, one, five)
    assert own.item() == pytest.approx(nll + 0.5 * math.log1p(math.exp(-odds)), abs=1e-14)
