"""Where a recipe would become too large it is refused at the key that makes it so, before it costs anything."""

import pytest

from schemas.errors import RecipeError, printable
from schemas.recipe.load import load_recipe
from schemas.source.extend import read_recipe
from schemas.source.limits import MAX_PROBLEMS, Allowance, measure_size
from schemas.source.tree import Mark, Node
from schemas.source.variables import Scope, substitute
from schemas.suggestions import suggest

HERE = Mark("f", 1, 1)
HEAD = "name: a\nstages:\n  base: {kind: init}\n"


def written(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / "r.yaml"


def refused(file, **more):
    with pytest.raises(RecipeError) as caught:
        load_recipe(file, **more)
    return caught.value.problems


def test_values_and_characters_that_are_put_in_are_charged():
    allowance = Allowance(nodes=5, characters=12)
    scope = Scope({"vars": {"x": Node([Node("abc", HERE), Node(7, HERE)], HERE)}}, allowance)
    substitute(Node("${vars.x}", HERE), scope)
    assert (allowance.nodes, allowance.characters) == (2, 9)
    substitute(Node("plain", HERE), scope)
    assert (allowance.nodes, allowance.characters) == (1, 4)
    with pytest.raises(RecipeError, match="more than"):
        substitute(Node("${vars.x}", HERE), scope, "tags.0")


def test_counting_a_tree_of_shared_parts_stops_at_the_limit():
    node = Node(1, HERE)
    for _ in range(60):
        node = Node([node, node], HERE)
    assert 1000 < measure_size(node, 1000, 10).nodes < 1200


def test_a_loop_is_counted_before_it_is_unrolled(tmp_path):
    values = ", ".join(map(str, range(256)))
    loop = f"  l: {{repeat: {{max: 100, stages: {{s: {{kind: init, matrix: {{a: [{values}]}}}}}}}}}}\n"
    (one,) = refused(written(tmp_path, r=HEAD + loop))
    assert (one.line, one.message) == (4, "25600 steps are too many")


def test_each_parent_is_read_once_however_often_it_is_extended(tmp_path, monkeypatch):
    import schemas.source.extend

    read, real = [], schemas.source.extend.read_source
    monkeypatch.setattr(
        schemas.source.extend, "read_source", lambda path, name: (read.append(path.name), real(path, name))[1]
    )
    levels = {f"e{i}": f"extends: [e{i + 1}.yaml, e{i + 1}.yaml]\n" for i in range(24)} | {"e24": HEAD}
    tree = read_recipe(written(tmp_path, r="extends: e0.yaml\n", **levels))
    assert list(tree.value["stages"].value) == ["base"]
    assert sorted(read) == sorted(["r.yaml", *(f"{name}.yaml" for name in levels)])


@pytest.mark.parametrize("line", ["extends: /dev/zero", "extends: .", 'extends: "a\\0b"', "extends: " + "a" * 5000])
def test_what_is_no_file_cannot_be_extended(tmp_path, line):
    (one,) = refused(written(tmp_path, r=f"{line}\n{HEAD}"))
    assert (one.file, one.line, one.column, one.path) == (str(tmp_path / "r.yaml"), 1, 10, "extends")


def test_many_errors_are_counted_and_not_listed(tmp_path):
    wrong = ", ".join(f"{{usee: gym{i}}}" for i in range(1900))
    problems = refused(written(tmp_path, r=f"{HEAD}  e: {{kind: evaluate, model: base, tasks: [{wrong}]}}\n"))
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message.endswith("more errors here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages.base.config={a: 1e999}", "a finite number is wanted, this is inf"),
        ("stages.base.config={a: .nan}", "a finite number is wanted, this is nan"),
        ("stages.base.config={a: 9223372036854775808}", "a whole number of 19 digits is too large"),
        ("stages.base.config=" + "[" * 63 + "]" * 63, "nested more than 64 levels deep"),
        ("stages.base.config={" + "k" * 201 + ": 1}", "a key of 201 characters is too long: " + "k" * 40 + "..."),
        ("stages.base.config={a: [" + "1, " * 2001 + "]}", "2001 entries in one place are too many"),
    ],
)
def test_values_that_nothing_can_use_are_refused_wherever_they_stand(tmp_path, text, message):
    assert message in refused(written(tmp_path, r=HEAD), overrides=[text])[0].message


@pytest.mark.parametrize(
    "override", [".².=1", "stages.base.².x=1", "stages.p.problems.²=1", "a." * 5000 + "b=1", "=", ""]
)
def test_overrides_that_name_nothing_are_refused(tmp_path, override):
    stages = "  p: {kind: synthesize, emit: prompts, problems: [chain]}\n"
    assert refused(written(tmp_path, r=HEAD + stages), overrides=[override])[0].file.startswith("--set ")


def test_control_characters_are_shown_as_escapes_and_long_texts_cut():
    assert printable("a\x1b[31m\nb") == r"a\x1b[31m\nb"
    assert printable("x" * 50, 10) == "xxxxxxxxxx... (50 characters)"


def test_a_suggestion_among_many_long_words_is_still_the_near_one():
    many = [f"stage_{i}" for i in range(20_000)]
    assert suggest("lerning_rate", ["learning_rate", *many], "keys") == "did you mean `learning_rate`?"
    assert suggest("x" * 100_000, ["a", "b"], "keys") == "keys: a, b"
    rewards = ["answers.close", "answers.exact", "formats.contains", "other.exact"]
    assert suggest("answers.contains", rewards, "rewards").startswith("did you mean `formats.contains`?")
    assert suggest("answer.exact", rewards, "rewards").startswith("did you mean `answers.exact`?")
    assert suggest("evaluat", ["evaluate", "sft"], "kinds") == "did you mean `evaluate`? kinds: evaluate, sft"
