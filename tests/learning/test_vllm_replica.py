"""vLLM behind the services that rollout workers run: load by a file, in flight, in a thread of its own."""

from importlib.util import find_spec

import pytest
import torch

from learning.generation.engines.torch import Engine as TorchEngine
from learning.generation.replicas.engine_loading import make_engine
from learning.models.policy import save_policy
from learning.parallel.actors import Threads
from learning.samples.engine_protocol import Request, Sampling
from schemas.use import EngineUse

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test does it"),
]
REQUESTS = [Request(ids, 4, seed) for seed, ids in enumerate([[5, 6, 7], [9], [4, 8, 15, 16, 23], [11, 12]])]


@pytest.fixture
def replicas(wide_policy, tmp_path):
    """One worker, as the role `rollout` with one worker has it."""
    save_policy(wide_policy, tmp_path / "policy")
    actors = Threads({"rollout": 1})
    use = EngineUse.model_validate({"use": "vllm", "max_num_seqs": 64})
    made = make_engine(use, wide_policy, actors, folder=tmp_path / "policy", scratch=tmp_path / "sync")
    yield made
    made.close()
    actors.close()


def plain(answers):
    return [[(g.token_ids, g.finish) for g in made] for made in answers]


@pytest.mark.parametrize("sampling", [Sampling(1.0, 16), Sampling(1.0, 16, window=5)], ids=["whole", "window"])
def test_a_rollout_worker_samples_what_the_trainer_would(wide_policy, replicas, sampling):
    before = plain(TorchEngine(wide_policy).generate(REQUESTS, sampling))
    assert plain(replicas.generate(REQUESTS, sampling)) == before
    with torch.no_grad():
        for parameter in wide_policy.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    replicas.sync(1)
    after = plain(TorchEngine(wide_policy).generate(REQUESTS, sampling))
    assert plain(replicas.generate(REQUESTS, sampling)) == after != before


def test_new_weights_reach_what_is_in_flight(wide_policy, replicas):
    sampling = Sampling(1.0, 400, stop=((999,),))
    replicas.submit(list(enumerate(REQUESTS)), sampling)
    with torch.no_grad():
        for parameter in wide_policy.model.parameters():
            parameter.mul_(0.5)
    replicas.sync(3)
    made = []
    while len(made) < 16:
        made += replicas.collect(1.0)
    versions = {version for _, g in made for version, _ in g.versions}
    assert versions <= {0, 3}
    for ticket, g in made:
        assert sum(tokens for _, tokens in g.versions) == len(g.token_ids)
        under_old = dict(g.versions).get(0, 0)
        ids = REQUESTS[ticket].prompt_ids + g.token_ids
        with torch.no_grad():
            rows = wide_policy.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        now = rows.gather(1, torch.tensor(ids[1:])[:, None])[-len(g.token_ids) + under_old :, 0]
        if under_old < len(g.token_ids):
            assert g.logprobs[under_old:] == pytest.approx(now.tolist(), abs=1e-4)
