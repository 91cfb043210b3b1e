import io
import json

import pytest
from rich.console import Console

from flows.history.audit import show_lineage, show_query, show_verification
from lineage.layout import Layout
from schemas.errors import PlanError


@pytest.fixture
def empty(tmp_path):
    return Layout(tmp_path), Console(file=io.StringIO(), width=100, color_system=None)


def test_a_query_prints_a_table_and_leaves_brackets_alone(empty):
    layout, console = empty
    show_query("select '[red]x' as \"[bold]\", null as nothing", layout, console, False)
    shown = console.file.getvalue()
    assert "[red]x" in shown
    assert "[bold]" in shown


def test_a_query_as_json(empty, capsys):
    show_query("select count(*) as number from steps", *empty, True)
    assert json.loads(capsys.readouterr().out) == [{"number": 0}]


def test_verification_of_nothing_is_clean_and_lineage_wants_a_target(empty):
    layout, console = empty
    assert show_verification(None, layout, console, False) == 0
    assert console.file.getvalue() == "0 artifacts (0 signed), 0 files, 0 audit entries: all as recorded\n"
    with pytest.raises(PlanError, match="no target"):
        show_lineage(None, layout, console, False)
