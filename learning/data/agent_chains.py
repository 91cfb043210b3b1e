"""Runs of several agents as one text: a chain of tags, each of which activates an agent (Li et al. 2025).

    <plan>twin, river</plan><search>bam twin</search><observation>bam twin zed</observation>…<answer>lun</answer>

A tool agent is given the words between its tags, and what it returns follows as an observation. A role-playing agent
reads the question and the chain so far, and the words between its tags are what it says.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

OBSERVATION = "observation"
NAME = re.compile(r"[A-Za-z_]\w{0,39}")


@dataclass(frozen=True)
class AgentCall:
    """One call of an agent."""

    agent: str
    input: str
    """What a tool agent is asked; of a role-playing agent the question and the chain so far."""
    output: str


def show_state(question: str, chain: str) -> str:
    """Return what a role-playing agent reads."""
    return f"{question}\n{chain}" if chain else question


def write_call(call: AgentCall, tools: Collection[str]) -> str:
    """Return a call as tags. Raise ValueError for a name that is no tag, and for texts that contain the tags."""
    if not NAME.fullmatch(call.agent) or call.agent == OBSERVATION:
        raise ValueError(f"agent {call.agent[:40]!r}: a name has letters, digits and _, and is not {OBSERVATION}")
    said = _enclose(call.agent, call.input if call.agent in tools else call.output)
    return said + (_enclose(OBSERVATION, call.output) if call.agent in tools else "")


def write_chain(question: str, calls: Sequence[AgentCall], tools: Collection[str]) -> str:
    """Return a run as one chain, from which `read_chain` gives the same calls back.

    The input of a role-playing agent is empty or what it reads there (`show_state`). Raise ValueError for another input
    and as `write_call` does.
    """
    chain = ""
    for call in calls:
        if call.agent not in tools and call.input not in ("", show_state(question, chain)):
            raise ValueError(
                f"agent {call.agent}: its input is not the question and the chain so far, which is all that a "
                "role-playing agent of a chain reads; leave `input` out, or name the agent as a tool"
            )
        chain += write_call(call, tools)
    return chain


def iterate_calls(chain: str, tools: Collection[str]) -> Iterator[tuple[int, str, str, str]]:
    """Yield place, agent, said words and observation (of tools) of each call. Raise ValueError as `read_chain` does."""
    at = 0
    while at < len(chain):
        start, (agent, said, at) = at, _read_tag(chain, at)
        observed = ""
        if agent == OBSERVATION:
            raise ValueError(f"character {start}: an observation that follows no tool")
        if agent in tools:
            follows, observed, at = _read_tag(chain, at)
            if follows != OBSERVATION:
                raise ValueError(f"character {start}: {agent} is a tool, and no observation follows")
        yield start, agent, said, observed


def read_chain(question: str, chain: str, tools: Collection[str]) -> list[AgentCall]:
    """Return the calls of a chain in order. Raise ValueError for a text that is not a whole chain.

    The text may be a model's: it is read once from left to right, and never evaluated.
    """
    return [
        AgentCall(agent, said, observed)
        if agent in tools
        else AgentCall(agent, show_state(question, chain[:start]), said)
        for start, agent, said, observed in iterate_calls(chain, tools)
    ]


def split_chain(chain: str, tools: Collection[str]) -> list[tuple[str, str]]:
    """Return what a model writes at once, each part with the chain before it: a part ends with a call of a tool.

    Observations are in the chain before the next part. Raise ValueError as `read_chain` does.
    """
    parts, begun, at = list[tuple[str, str]](), 0, 0
    while at < len(chain):
        agent, _, end = _read_tag(chain, at)
        if agent == OBSERVATION:
            begun = end
        elif agent in tools or end == len(chain):
            parts.append((chain[:begun], chain[begun:end]))
        at = end
    return parts


def _enclose(tag: str, text: str) -> str:
    if re.search(r"</?[A-Za-z_]\w*>", text):
        raise ValueError(f"{tag}: its text contains a tag, so that the chain could not be read back: {text[:60]!r}")
    return f"<{tag}>{text}</{tag}>"


def _read_tag(chain: str, at: int) -> tuple[str, str, int]:
    """Return name and text of the tag that begins at a place, and the place behind it."""
    name = NAME.match(chain, at + 1) if chain[at : at + 1] == "<" else None
    if name is None or chain[name.end() : name.end() + 1] != ">":
        raise ValueError(f"character {at}: no tag begins here")
    closing = f"</{name[0]}>"
    end = chain.find(closing, name.end() + 1)
    text = chain[name.end() + 1 : end]
    if end < 0 or re.search(r"</?[A-Za-z_]\w*>", text):
        raise ValueError(f"character {at}: <{name[0]}> is not closed before another tag")
    return name[0], text, end + len(closing)
