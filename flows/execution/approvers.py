"""Who may decide about a gate with `approvers`: accounts of the operating system, but not the one of the run."""

from collections.abc import Iterable

from lineage.audit.approvals import DecisionRecord
from lineage.audit.chain import read_chain
from lineage.audit.log import read_account
from lineage.layout import Layout
from schemas.errors import PlanError

COMMAND_LINE = "command line"
"""Where a decision must be made: Prefect's form takes any name."""


def read_starter(layout: Layout, run: str) -> str | None:
    """Return the account that started a run, by the audit log."""
    started = (entry for entry in read_chain(layout).entries if entry["action"] == "run started")
    return next((entry["who"] for entry in started if entry["facts"].get("run") == run), None)


def verify_approver(layout: Layout, run: str, approvers: Iterable[str], name: str | None) -> None:
    """Raise PlanError if this account may not decide about a gate, or gives another name than its own."""
    allowed = list(approvers)
    if not allowed:
        return
    account = read_account()
    if account not in allowed:
        raise PlanError(f"{account} is not among the gate's `approvers`: {', '.join(allowed)}")
    if name not in (None, account):
        raise PlanError(f"a gate with `approvers` records the account that decides: leave out --name {name}")
    if account == read_starter(layout, run):
        others = [other for other in allowed if other != account]
        raise PlanError(
            f"{account} started run {run}; another approver decides: {', '.join(others) or 'none is named'}"
        )


def counts(record: DecisionRecord, approvers: Iterable[str]) -> bool:
    """Return whether a decision counts for a gate: of one of its approvers, made on the command line."""
    allowed = list(approvers)
    return not allowed or (record["name"] in allowed and record.get("via") == COMMAND_LINE)
