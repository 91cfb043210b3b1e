"""A conversation about items as a graph: who is connected with what, what may be asked, and values of both together.

An observation has V · P numbers for which items that are still possible have which attributes that were not refused, V
weights of items, 0 for one that is no longer possible, and P numbers for which attributes the user confirmed. A choice
is an item, or after these an attribute. Shapes: B observations, V items, P attributes, E numbers of an embedding.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from learning.control.stepping.spaces import Spaces
from schemas.errors import StepError

FULL = 1 - 1e-9
"""Share from which all possible items have an attribute, sums of floating-point numbers being what they are."""


def find_sizes(spaces: Spaces) -> tuple[int, int]:
    """Return the numbers of items and attributes. Raise StepError unless the spaces are those of a conversation.

    There are (V + 1) (P + 1) − 1 numbers to observe and V + P choices, and at least as many items as attributes.
    """
    total, product = spaces.actions + 2, spaces.observations + 1
    items = (total + math.isqrt(max(total**2 - 4 * product, 0))) // 2 - 1
    attributes = spaces.actions - items
    fits = (items + 1) * (attributes + 1) == product and items >= attributes >= 1
    if not spaces.is_discrete or spaces.agents > 1 or not fits:
        raise StepError(
            "a conversation has (V + 1) (P + 1) − 1 numbers to observe and V + P choices, V items and at most as many "
            f"attributes P; {spaces.describe()}"
        )
    return items, attributes


@dataclass(frozen=True)
class Graph:
    """The present edges of B conversations."""

    has_BVP: Tensor
    """1 where a possible item has an attribute that was not refused."""
    weight_BV: Tensor
    """How much the user is likely to want an item; 0 for those no longer possible."""
    confirmed_BP: Tensor
    """1 for attributes that the user confirmed."""

    @classmethod
    def read(cls, observation_BO: Tensor, items: int, attributes: int) -> Self:
        """Return the graphs that observations describe."""
        edges = items * attributes
        has_BVP = observation_BO[:, :edges].reshape(-1, items, attributes)
        return cls(has_BVP, observation_BO[:, edges : edges + items], observation_BO[:, edges + items :])

    def find_open(self) -> Tensor:
        """Return what may be recommended or asked (B, V + P): possible items, and attributes of these not yet asked."""
        asked_BP = self.confirmed_BP > 0
        return torch.cat([self.weight_BV > 0, (self.has_BVP.sum(1) > 0) & ~asked_BP], 1)

    def score_attributes(self) -> Tensor:
        """Return −p log p (B, P), p being the share of the possible items' weight that has the attribute."""
        weight_B1 = self.weight_BV.sum(1, keepdim=True).clamp(min=1e-12)
        share_BP = (self.weight_BV[:, :, None] * self.has_BVP).sum(1) / weight_B1
        split_BP = (share_BP > 0) & (share_BP < FULL)
        return torch.where(split_BP, -share_BP * share_BP.clamp(min=1e-12).log(), 0.0)

    def keep_best(self, items: int, attributes: int) -> Tensor:
        """Return the candidates among what is open (B, V + P): so many items by weight, and attributes by score."""
        open_BA = self.find_open()
        count = self.weight_BV.shape[1]
        kept = [
            mark_largest(scores.masked_fill(~may, -math.inf), most) & may
            for scores, may, most in (
                (self.weight_BV, open_BA[:, :count], items),
                (self.score_attributes(), open_BA[:, count:], attributes),
            )
        ]
        return torch.cat(kept, 1)


def mark_largest(score_BN: Tensor, most: int) -> Tensor:
    """Return which of a row's numbers are the `most` largest ones (B, N); of equal ones the first."""
    order = score_BN.argsort(dim=1, descending=True, stable=True)[:, :most]
    return torch.zeros_like(score_BN, dtype=torch.bool).scatter_(1, order, True)


class GraphConvolution(nn.Module):
    """ReLU(Λ E W + E B), Λ being the edges' weights over the roots of both ends' degrees (Deng et al. 2021, eq. 4)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.neighbours, self.own = nn.Linear(size, size, bias=False), nn.Linear(size, size)

    def forward(self, nodes_BNE: Tensor, edges_BNN: Tensor) -> Tensor:
        """Return the nodes with what their neighbours pass on."""
        root_BN = edges_BNN.sum(-1).clamp(min=1e-12).rsqrt()
        passed_BNN = root_BN[:, :, None] * edges_BNN * root_BN[:, None]
        return torch.relu(passed_BNN @ self.neighbours(nodes_BNE) + self.own(nodes_BNE))


class ConversationValues(nn.Module):
    """Dueling values of items and attributes, (B, V + P): the state's value, and the advantages of its candidates.

    Graph convolutions over the user, items and attributes; a transformer over the confirmed attributes, whose mean is
    the state. An advantage is that of the state and the embedding of an item or attribute, less the candidates' mean.
    """

    kept: Tensor

    def __init__(self, spaces: Spaces, size: int, heads: int) -> None:
        super().__init__()
        self.items, self.attributes = find_sizes(spaces)
        nodes = 1 + self.items + self.attributes
        self.embedding = nn.Parameter(torch.randn(nodes, size) / math.sqrt(size))
        self.convolutions = nn.ModuleList(GraphConvolution(size) for _ in range(2))
        self.history = nn.TransformerEncoderLayer(size, heads, 4 * size, dropout=0.0, batch_first=True)
        self.state = nn.Linear(size, size)
        self.value = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1))
        self.advantage = nn.Sequential(nn.Linear(2 * size, size), nn.ReLU(), nn.Linear(size, 1))
        # A float, since target networks are moved towards the trained ones with all that they hold.
        self.register_buffer("kept", torch.tensor([10.0, 10.0]))

    def read(self, observation_BO: Tensor) -> Graph:
        """Return the graphs of observations."""
        return Graph.read(observation_BO, self.items, self.attributes)

    def find_candidates(self, graph: Graph) -> Tensor:
        """Return which items and attributes are chosen among (B, V + P)."""
        items, attributes = (round(float(most)) for most in self.kept)
        return graph.keep_best(items, attributes)

    def connect(self, graph: Graph) -> Tensor:
        """Return the edges (B, N, N) of user, items and attributes: weights to items, 1 from items to attributes."""
        edges = graph.has_BVP.new_zeros(len(graph.has_BVP), len(self.embedding), len(self.embedding))
        edges[:, 0, 1 : 1 + self.items] = graph.weight_BV
        edges[:, 1 : 1 + self.items, 1 + self.items :] = graph.has_BVP
        return edges + edges.transpose(1, 2)

    def encode(self, graph: Graph) -> Tensor:
        """Return the state (B, E): the mean of what the transformer makes of the confirmed attributes' nodes."""
        edges_BNN = self.connect(graph)
        nodes_BNE = self.embedding.expand(len(edges_BNN), -1, -1)
        for convolution in self.convolutions:
            nodes_BNE = convolution(nodes_BNE, edges_BNN)
        confirmed_BP = graph.confirmed_BP > 0
        # Where nothing is confirmed, all attributes are read: attention over nothing is not a number.
        read_BP = confirmed_BP | ~confirmed_BP.any(1, keepdim=True)
        seen_BPE = self.history(nodes_BNE[:, 1 + self.items :], src_key_padding_mask=~read_BP)
        mean_BE = (seen_BPE * read_BP[..., None]).sum(1) / read_BP.sum(1, keepdim=True)
        return torch.relu(self.state(mean_BE))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of all choices, and which of them are candidates."""
        flat_BO = observation.reshape(-1, observation.shape[-1])
        graph = self.read(flat_BO)
        state_BE, candidate_BA = self.encode(graph), self.find_candidates(graph)
        choices_AE = self.embedding[1:]
        pair = torch.cat(
            [
                state_BE[:, None].expand(-1, len(choices_AE), -1),
                choices_AE.expand(len(state_BE), -1, -1),
            ],
            -1,
        )
        advantage_BA = self.advantage(pair).squeeze(-1)
        mean_B1 = (advantage_BA * candidate_BA).sum(1, keepdim=True) / candidate_BA.sum(1, keepdim=True).clamp(min=1)
        value_BA = self.value(state_BE) + advantage_BA - mean_B1
        shape = (*observation.shape[:-1], -1)
        return value_BA.reshape(shape), candidate_BA.reshape(shape)


class ChooseCandidate(nn.Module):
    """The candidate with the highest value, item or attribute."""

    def forward(self, action_value: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Return the choices, and their values (…, 1)."""
        action = action_value.masked_fill(~candidate, -math.inf).argmax(-1)
        return action, action_value.gather(-1, action[..., None])
