"""One of two ranks: reads its shards of models, measures what it holds meanwhile, and takes a training step.

Run as a script: shard_ranks.py FOLDER RANK. The models are the folders in FOLDER/models.
"""

import json
import os
import sys
import weakref
from pathlib import Path

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from learning.models.forwards import find_blocks
from learning.models.packed import pack, packed_logprobs
from learning.models.policy import load_policy
from learning.models.sharded_model import Trained
from learning.parallel.group import Group, gather_shards


class Counter(TorchDispatchMode):
    """Adds up the bytes of all tensors that operations take and make, until each is freed; of shards the local part."""

    def __init__(self):
        super().__init__()
        self.live, self.peak, self.held = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.see(args)
        out = func(*args, **(kwargs or {}))
        self.see(out)
        return out

    def see(self, values):
        for value in tree_leaves(values):
            tensor = getattr(value, "_local_tensor", value)
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                if storage._cdata not in self.held:
                    self.held[storage._cdata] = storage.nbytes()
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self.freed, storage._cdata)

    def freed(self, key):
        self.live -= self.held.pop(key)


def size(tensors):
    """Bytes of the storages of tensors."""
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def load(folder, group, *, whole):
    """The model, sharded: from shards read from the files, or cut from the whole model."""
    policy = load_policy(folder, group=Group() if whole else group)
    assert (policy.unread is None) == whole
    return Trained(policy.model, group, policy.unread)


def gradients(trained):
    """The shards of the gradient of a step, for a prefix with two continuations on either rank."""
    segments = [[3, 4, 5], [6, 7], [8, 9, 10, 11]]

    def loss(shift):
        packed = pack([[token + shift for token in tokens] for tokens in segments], [-1, 0, 0])
        return packed_logprobs(trained.model, packed)[0].sum(), None

    trained.backward([0, 1], loss)
    return {name: local(p.grad) for name, p in trained.model.named_parameters()}


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def check(folder, group):
    """Bytes that this rank held while it loaded, and whether weights and gradients are those of the whole model."""
    with Counter() as counter:
        trained = load(folder, group, whole=False)
    truth = load_policy(folder).model
    tensors = {**truth.state_dict(), **dict(truth.named_buffers())}
    mine = {**trained.model.state_dict(), **dict(trained.model.named_buffers())}
    same = mine.keys() == tensors.keys() and all(torch.equal(gather_shards(mine[n]), t) for n, t in tensors.items())
    tied = {name for name, p in truth.named_parameters(remove_duplicate=False)} - dict(truth.named_parameters()).keys()
    shards = {name: local(p) for name, p in trained.model.named_parameters()}
    cut = gradients(load(folder, group, whole=True))
    return {
        "peak": counter.peak,
        "shard": size([*shards.values(), *dict(trained.model.named_buffers()).values()]),
        "layer": max(size(block.parameters()) for block in find_blocks(truth)),
        "whole": size(truth.parameters()),
        "same_weights": same,
        "same_gradients": all(torch.equal(gradient, cut[name]) for name, gradient in gradients(trained).items()),
        "tied": sorted(tied),
    }


def main(folder, rank):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    group = Group(rank, 2, "fsdp2")
    results = {path.name: check(path, group) for path in sorted((folder / "models").iterdir())}
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
