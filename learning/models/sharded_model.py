"""A model trained by a group: forward passes run through the DDP or FSDP2 wrapper, gradients are summed.

With `ddp` every rank holds the whole model and accelerate wraps it in torch's DistributedDataParallel; with `fsdp2`
each block is sharded over the ranks by `torch.distributed.fsdp.fully_shard` and gathered while it computes (accelerate
disables its own plugin without accelerators, and the same code must run on CPUs). Both only see a forward pass through
their own module, while the losses call the body of a model and its head separately; so the wrapped module is `Calls`,
whose forward pass is a whole loss.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from learning.models.forwards import find_blocks
from learning.models.policy import Policy
from learning.models.unread_weights import UnreadWeights
from learning.parallel.group import ALONE, Each, Group, gather_shards
from schemas.errors import StepError

Part = TypeVar("Part")
Found = TypeVar("Found")


class Calls(nn.Module):
    """A module whose forward pass calls a given function of the model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], Any]) -> Any:
        """Return what the function returns."""
        return function()


class Trained:
    """A model that is trained by a group. `model` is the plain one: losses are functions of it.

    With `fsdp2` its parameters are shards between forward passes, and no other code may compute with it.
    """

    def __init__(self, model: nn.Module, group: Group = ALONE, unread: UnreadWeights | None = None):
        """Shard or replicate a model. `unread` are its weights if it has none yet: each rank reads its own shards."""
        self.model, self.group = model, group
        experts = any(".experts." in name for name, _ in model.named_parameters())
        self.rests = experts and group.size > 1 and not group.shards
        self.calls: Any = None
        if group.size > 1:
            self.calls = _sharded(model, group) if group.shards else _replicated(model, group)
        if unread is not None:
            unread.read(self.calls, group.device)

    def __call__(self, function: Callable[[], Found]) -> Found:
        """Call a function that computes with the model; every rank must call it equally often."""
        return function() if self.calls is None else self.calls(function)

    def examine(self, function: Callable[[], Found]) -> Found:
        """Return the result of a function that computes with the model once, without gradient, on every rank."""
        if not self.group.shards:
            return function()
        with torch.no_grad():
            result = self(function)
            self.calls.reshard()
            return result

    def backward(self, parts: Sequence[Part], loss_of: Callable[[Part], tuple[Tensor, Found]]) -> list[Found]:
        """Accumulate the gradient of the summed loss over `parts`; return the second results of this rank's own parts.

        Each rank computes its share; afterwards all have the sum. Raise StepError if there is no part.
        """
        if not parts:
            raise StepError("nothing to train on in this step")
        results = []
        rounds = self.group.rounds(parts)
        for i, (part, real) in enumerate(rounds):
            last = i + 1 == len(rounds)
            with self._synced(last):
                loss, metrics = self(lambda part=part: loss_of(part))
                loss = loss if real else loss * 0
                (loss + self._nothing() if last and self.rests else loss).backward()
            if real:
                results.append(metrics)
        return results

    def each(self, parts: Sequence[Part], function: Callable[[Part], Found]) -> list[Found]:
        """Return a function's result for every part, without gradient, in order, on every rank."""
        with torch.no_grad():
            if not self.group.shards:
                return self.group.each(parts, function)
            results = self.group.each(parts, lambda part: self(lambda: function(part)))
            self.calls.reshard()  # after a backward pass that would happen by itself
            return results

    @torch.no_grad()
    def copy_to(self, other: nn.Module) -> None:
        """Copy the weights to a plain copy of the model; every rank must call this, even one without a copy."""
        for new, old in zip(self.model.parameters(), other.parameters(), strict=True):
            if new.requires_grad:
                full = gather_shards(new)
                if old is not new:
                    old.copy_(full)

    @torch.no_grad()
    def gather(self) -> None:
        """Gather the model of rank 0 on the CPU, to be saved; it must not be used for computation afterwards."""
        if not self.group.shards:
            return
        done: dict[int, nn.Parameter] = {}
        for module in self.model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in done:
                    full = gather_shards(parameter.detach())
                    done[id(parameter)] = (
                        nn.Parameter(full.cpu(), parameter.requires_grad) if self.group.main else parameter
                    )
                if parameter is not None:
                    module._parameters[name] = done[id(parameter)]

    def _nothing(self) -> Tensor:
        """Return 0 with a gradient for every parameter: DDP waits for gradients of experts that received no token."""
        firsts = [p.flatten()[0] for p in self.model.parameters() if p.requires_grad]
        return 0.0 * sum(firsts[1:], firsts[0])

    @contextmanager
    def _synced(self, last: bool) -> Iterator[None]:
        """Synchronise gradients of replicas only after the last round, those of shards after each, to save memory."""
        if last or self.calls is None or self.group.shards:
            yield
        else:
            with self.calls.no_sync():
                yield


def share_passes(policy: Policy, group: Group) -> Each:
    """Return how the ranks share forward passes of a policy that is not trained; it is sharded if it is unread."""
    return group.each if policy.unread is None else Trained(policy.model, group, policy.unread).each


def _replicated(model: nn.Module, group: Group) -> nn.Module:
    from accelerate import Accelerator  # imported only by groups, since the import is slow

    wrapped: Any = Accelerator(cpu=group.device == "cpu").prepare_model(Calls(model))
    wrapped.register_comm_hook(None, _summed)
    return wrapped


# torch compares the annotation of the bucket with this class at run time.
def _summed(
    _: None,
    bucket: distributed.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[Tensor]:
    """Return the sum over the ranks; DistributedDataParallel itself would take the mean."""
    work: Any = distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _sharded(model: nn.Module, group: Group) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(group.device.partition(":")[0], (group.size,))
    for block in find_blocks(model):
        fully_shard(block, mesh=mesh)
    calls: Any = fully_shard(Calls(model), mesh=mesh)
    for module in calls.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            module.set_reduce_scatter_unused_params(True)
    return calls
