"""Q and V of a few states as tables, learned by the losses of a stage: what they find where nothing else errs."""

import torch

from learning.lookup import bind
from schemas.number_schedules import value_at


class Table:
    """Values of states by name. An episode is a list of (state, action, reward)."""

    def __init__(self, stage, episodes, steps=500):
        self.states = sorted({state for episode in episodes for state, _, _ in episode})
        self.actions = sorted({action for episode in episodes for _, action, _ in episode})
        self.episodes, self.stage = episodes, stage
        self.counts = torch.zeros(len(self.states), len(self.actions), dtype=torch.float64)
        for episode in episodes:
            for state, action, _ in episode:
                self.counts[self.states.index(state), self.actions.index(action)] += 1
        self.learn(steps)

    def learn(self, steps):
        moves = [move for episode in self.episodes for move in episode]
        state_T = torch.tensor([self.states.index(state) for state, _, _ in moves])
        action_T = torch.tensor([self.actions.index(action) for _, action, _ in moves])
        path_T = torch.tensor([i for i, episode in enumerate(self.episodes) for _ in episode])
        last_T = torch.cat([path_T.diff() != 0, torch.tensor([True])])
        generator = torch.Generator().manual_seed(0)
        shape = (len(self.states), len(self.actions), self.stage.heads)
        q_SAH = (0.01 * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()
        v_S = torch.zeros(len(self.states), dtype=torch.float64, requires_grad=True)
        slow_SAH = q_SAH.detach().clone()
        optimizer = torch.optim.Adam([q_SAH, v_S], lr=0.05)
        terms = [(bind(use), use.weight) for use in self.stage.loss]
        reward_T = torch.tensor([reward for _, _, reward in moves], dtype=torch.float64)
        for step in range(steps):
            own_TAH = q_SAH[state_T]
            q_TH = own_TAH.gather(1, action_T[:, None, None].expand(-1, 1, shape[2]))[:, 0]
            least_SA = slow_SAH.amin(-1) if self.stage.target_network else q_SAH.detach().amin(-1)
            next_T = v_S.detach()[state_T].roll(-1).masked_fill(last_T, 0.0)
            columns = {
                "q_TH": q_TH,
                "v_T": v_S[state_T],
                "q_THV": own_TAH.transpose(1, 2),
                "q_target_T": least_SA[state_T, action_T],
                "v_next_T": next_T,
                "reward_T": reward_T,
                "path_T": path_T,
            }
            loss = sum(value_at(weight, step) * term.ask(step, columns).mean() for term, weight in terms)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                slow_SAH.lerp_(q_SAH, 0.2)
        self.q_SA, self.v_S = q_SAH.detach().amin(-1), v_S.detach()

    def imitate(self, state):
        """The most frequent action of the data in a state."""
        return self.actions[int(self.counts[self.states.index(state)].argmax())]

    def weigh(self, state, beta):
        """The probabilities of π_BC·exp(β(Q − V)) in a state, π_BC being the frequencies in the data."""
        row = self.states.index(state)
        prior_A = (self.counts[row] / self.counts[row].sum()).log()
        return (prior_A + beta * (self.q_SA[row] - self.v_S[row])).softmax(0)

    def improve(self, state, beta):
        """The likeliest action by these probabilities."""
        return self.actions[int(self.weigh(state, beta).argmax())]
