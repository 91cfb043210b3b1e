"""What evaluations say about problems that are among the rows which their models were trained on."""

from learning.data.rows import write_rows
from tasks.context import Context
from tasks.training_rows import describe_trained_problems
from tests.tasks.test_curate import chat_row, prompt_row

LONG = "A ship with nine sails leaves the harbour at dawn and returns after eleven days; how far did it go?"
PROBLEMS = [prompt_row("a", "3 + 4 ="), prompt_row("b", "5 + 6 ="), prompt_row("c", LONG), prompt_row("d", "7 + 8 =")]


def describe(tmp_path, **tables):
    """Return the sentences for tables of rows by their ports."""
    inputs = {}
    for port, (kind, rows) in tables.items():
        folder = inputs[port.replace("_of_", ".")] = tmp_path / port
        folder.mkdir()
        write_rows(folder, kind, rows)
    return describe_trained_problems(PROBLEMS, Context(inputs, tmp_path, tmp_path, seed=0))


def test_equal_and_nearly_equal_problems_are_counted_once_per_model(tmp_path):
    asked = [prompt_row("1", "1 + 1 ="), prompt_row("2", "5+6="), prompt_row("3", "5 + 6 =")]
    chat = [chat_row("x", f"Solve it: {LONG.upper()} Please.", "Far."), chat_row("y", "12 + 3 + 4 =", "19")]
    assert describe(tmp_path, trained_on_of_tuned_of_0=("chat", chat), trained_on_of_tuned_of_1=("prompts", asked)) == [
        "tuned: 2 of 4 problems are among the rows that it was trained on (3 rows; first: problem c in row x), so its "
        "results are too good; leave these rows out: `contaminated_rows: drop` in the stages that train"
    ]


def test_a_pair_is_found_by_its_prompt(tmp_path):
    sides = {"chosen": [{"role": "assistant", "content": "7"}], "rejected": [{"role": "assistant", "content": "8"}]}
    rows = [prompt_row("p", "3 + 4 =", margin=None, **sides)]
    (text,) = describe(tmp_path, trained_on_of_model_of_0=("preference_pairs", rows))
    assert text.startswith("model: 1 of 4 problems are among the rows that it was trained on (1 row; first: problem a ")


def test_rows_without_problems_and_other_inputs_say_nothing(tmp_path):
    rows = [prompt_row("1", "1 + 1 =")]
    tables = {"trained_on_of_tuned_of_0": ("prompts", rows), "prompts": ("prompts", PROBLEMS)}
    assert describe(tmp_path, **tables) == []
