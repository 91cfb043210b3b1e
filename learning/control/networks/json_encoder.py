"""Networks that turn JSON of any shape into vectors of one size (json2vec, Woof and Chen 2020).

Shapes: B observations of O bytes, M nodes of all trees, D numbers of a state, P places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from learning.control.networks.json_trees import Node, read_tree

PLACES = 64
"""Places with weights of their own; those whose CRC-32 is alike modulo this number have the same."""


@dataclass
class Layout:
    """Nodes of some trees, leaves first, so that children come before the containers that hold them."""

    order: list[list[Node]] = field(default_factory=list)
    """Numbers, texts, then objects and arrays of level 1, of level 2, …"""
    position: dict[int, int] = field(default_factory=dict)
    """Position of a node, by its identity."""


def lay_out(trees: Iterable[Node | None]) -> Layout:
    """Return all nodes of some trees by kind and level; those of a tree that is given twice stand once."""
    groups: dict[int, list[Node]] = {0: [], 1: []}
    waiting = list({id(tree): tree for tree in trees if tree is not None}.values())
    while waiting:
        node = waiting.pop()
        kind = isinstance(node.value, bytes) if node.level == 0 else 2 * node.level + node.is_ordered
        groups.setdefault(int(kind), []).append(node)
        waiting.extend(node.children)
    layout = Layout([groups.get(kind, []) for kind in range(max(groups) + 1)])
    for node in (node for group in layout.order for node in group):
        layout.position[id(node)] = len(layout.position)
    return layout


class Leaves(nn.Module):
    """States of numbers and texts, with weights for their places."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.number_weight = nn.Parameter(torch.randn(PLACES, size) / 2)
        self.number_bias = nn.Parameter(torch.randn(PLACES, size) / 2)
        self.letters = nn.Embedding(256, size)
        self.text = nn.LSTMCell(size, size)
        self.text_start = nn.Parameter(torch.randn(PLACES, size) / 2)

    def encode_numbers(self, nodes: Sequence[Node]) -> Tensor:
        """Return states (M, D): an affine function of asinh x, that of the number's place."""
        value_M1 = torch.tensor([node.value for node in nodes], dtype=torch.float64).asinh().float()[:, None]
        place_M = find_places(nodes)
        return self.number_weight[place_M] * value_M1 + self.number_bias[place_M]

    def encode_texts(self, nodes: Sequence[Node]) -> Tensor:
        """Return the last states (M, D) of a recurrent network over bytes, which starts by the place; 0 for ''."""
        texts = [node.value if isinstance(node.value, bytes) else b"" for node in nodes]
        length_M = torch.tensor([len(text) for text in texts])
        longest = int(length_M.max())
        byte_ML = torch.tensor([list(text.ljust(longest, b"\0")) for text in texts], dtype=torch.long)
        hidden = self.text_start[find_places(nodes)] * (length_M > 0)[:, None]
        cell = torch.zeros_like(hidden)
        for at in range(longest):
            goes_on = (at < length_M)[:, None]
            after = self.text(self.letters(byte_ML[:, at]), (hidden, cell))
            hidden, cell = (torch.where(goes_on, new, old) for new, old in zip(after, (hidden, cell), strict=True))
        return hidden

    def encode_leaves(self, layout: Layout) -> list[Tensor]:
        """Return the states of numbers and of texts."""
        numbers, texts = layout.order[:2]
        made = [self.encode_numbers(numbers)] if numbers else []
        return [*made, self.encode_texts(texts)] if texts else made


class TreeEncoder(Leaves):
    """A child-sum tree LSTM over objects, whose keys have no order, and an LSTM over arrays, whose items have one."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.outputs = 2 * size
        self.gates, self.forget = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.key_weight = nn.Parameter(torch.randn(PLACES, size, size) / size**0.5)
        self.key_bias = nn.Parameter(torch.zeros(PLACES, size))
        self.items = nn.LSTMCell(2 * size, size)
        self.items_start = nn.Parameter(torch.randn(PLACES, size) / 2)

    def forward(self, trees: Sequence[Node | None]) -> Tensor:
        """Return a vector (B, 2 D) for each tree, memory and state of its root; zeros for None."""
        layout = lay_out(trees)
        hidden_MD = torch.cat([*self.encode_leaves(layout), torch.zeros(0, self.size)])
        cell_MD = torch.zeros_like(hidden_MD)
        for number, nodes in enumerate(layout.order[2:]):
            if nodes:
                made = (self.join_items if number % 2 else self.join_keys)(nodes, layout, cell_MD, hidden_MD)
                cell_MD, hidden_MD = (torch.cat(parts) for parts in zip((cell_MD, hidden_MD), made, strict=True))
        both = torch.cat([torch.cat([cell_MD, hidden_MD], 1), torch.zeros(1, 2 * self.size)])
        return both[[-1 if tree is None else layout.position[id(tree)] for tree in trees]]

    def join_keys(self, nodes: Sequence[Node], layout: Layout, cell_MD: Tensor, hidden_MD: Tensor) -> Any:
        """Return memory and state of objects: sums over their values, each with a forget gate of its own."""
        owner = torch.tensor([n for n, node in enumerate(nodes) for _ in node.children])
        child = [layout.position[id(one)] for node in nodes for one in node.children]
        hidden, cell = hidden_MD[child], cell_MD[child]
        empty = hidden.new_zeros(len(nodes), self.size)
        keep, write, show = self.gates(empty.index_add(0, owner, hidden)).chunk(3, 1)
        kept = empty.index_add(0, owner, self.forget(hidden).sigmoid() * cell)
        memory = keep.sigmoid() * write.tanh() + kept
        state, place = show.sigmoid() * memory.tanh(), find_places(nodes)
        return memory, torch.einsum("nde,ne->nd", self.key_weight[place], state) + self.key_bias[place]

    def join_items(self, nodes: Sequence[Node], layout: Layout, cell_MD: Tensor, hidden_MD: Tensor) -> Any:
        """Return memory and state of arrays after their last item."""
        hidden = self.items_start[find_places(nodes)]
        cell = torch.zeros_like(hidden)
        for at in range(max(len(node.children) for node in nodes)):
            goes_on = torch.tensor([at < len(node.children) for node in nodes])[:, None]
            child = [layout.position[id(node.children[min(at, len(node.children) - 1)])] for node in nodes]
            after = self.items(torch.cat([cell_MD[child], hidden_MD[child]], 1), (hidden, cell))
            hidden, cell = (torch.where(goes_on, new, old) for new, old in zip(after, (hidden, cell), strict=True))
        return cell, hidden


class LeafSum(Leaves):
    """The sum of the states of all numbers and texts, whatever holds them."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.outputs = size

    def forward(self, trees: Sequence[Node | None]) -> Tensor:
        """Return a vector (B, D) for each tree; zeros for None."""
        layout = lay_out(trees)
        hidden_MD = torch.cat([*self.encode_leaves(layout), torch.zeros(0, self.size)])
        leaves = [(n, layout.position[id(leaf)]) for n, tree in enumerate(trees) for leaf in list_leaves(tree)]
        owner, position = torch.tensor(leaves, dtype=torch.long).reshape(-1, 2).T
        return hidden_MD.new_zeros(len(trees), self.size).index_add(0, owner, hidden_MD[position])


class FromBytes(nn.Module):
    """Reads observations that are JSON in bytes, zeros behind its end, and encodes each different one once."""

    def __init__(self, encoder: TreeEncoder | LeafSum) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, observation: Tensor) -> Tensor:
        """Return the vectors (…, numbers) of observations (…, O). Raise StepError for one that is no JSON."""
        flat = observation.detach().reshape(-1, observation.shape[-1]).to(torch.uint8).numpy()
        texts = [row.tobytes().rstrip(b"\0") for row in flat]
        number = {text: n for n, text in enumerate(dict.fromkeys(texts))}
        vectors = self.encoder([read_tree(text) for text in number])
        return vectors[[number[text] for text in texts]].reshape(*observation.shape[:-1], -1)


def find_places(nodes: Sequence[Node]) -> Tensor:
    """Return which weights of places nodes have."""
    return torch.tensor([node.place % PLACES for node in nodes], dtype=torch.long)


def list_leaves(tree: Node | None) -> list[Node]:
    """Return the numbers and texts of a tree."""
    if tree is None:
        return []
    return [leaf for child in tree.children for leaf in list_leaves(child)] if tree.level else [tree]
