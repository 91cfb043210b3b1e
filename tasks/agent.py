"""kind: agent — an agent as one artifact, defined by the recipe or written by an author for a task."""

import json

from learning.agents.drafting import Drafting
from learning.agents.environment import Environment
from learning.agents.folder import write_agent
from learning.data.rows import Row
from learning.lookup import bind
from schemas.agent import Agent, AuthorUse
from schemas.stages.agent import AgentStage
from tasks.context import Context, Metric, Result
from tasks.remote import SpendingReporter, open_account


def run(stage: AgentStage, context: Context) -> Result:
    """Test the recipe's own tools, let the author write further ones, and publish what passed."""
    agent = Agent(
        description=stage.task,
        environment=stage.environment,
        toolkit=stage.toolkit,
        made=stage.made,
        context=stage.context,
        experiences=stage.experiences,
    )
    drafting = Drafting(agent)
    drafting.proven(agent.made)
    if stage.author is not None:
        agent = write_drafts(drafting, stage, stage.author, context)
    write_agent(context.output("agent"), agent, context.inputs)
    if agent.environment is not None:
        Environment(folder=str(context.output("agent")))  # raises its errors here, not in later stages
    lines = [json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in drafting.lines]
    (context.output("report") / "written.jsonl").write_text("".join(lines), encoding="utf-8")
    return Result(count_drafts(agent, drafting.lines), {"written": drafting.lines})


def write_drafts(drafting: Drafting, stage: AgentStage, use: AuthorUse, context: Context) -> Agent:
    """Return the agent that the author writes for the task."""
    account = open_account(context, stage.max_tokens_total, stage.max_cost)
    spending = SpendingReporter(context, account)
    try:
        author = bind(use, "author", context.inputs)
        return drafting.written(author, stage.task, stage.max_attempts, {"seed": context.seed, "account": account})
    finally:
        spending.report()


def count_drafts(agent: Agent, lines: list[Row]) -> dict[str, Metric]:
    """Return how many tools and drafts were accepted and refused."""
    tools = [line["accepted"] for line in lines if line["what"] == "tool"]
    drafts = [line["accepted"] for line in lines if line["what"] == "draft"]
    return {
        "tools": len(agent.toolkit) + len(agent.made),
        "tools_written": len(tools),
        "tools_refused": len(tools) - sum(tools),
        "drafts": len(drafts),
        "drafts_refused": len(drafts) - sum(drafts),
        **({"tool_success": sum(tools) / len(tools)} if tools else {}),
    }
