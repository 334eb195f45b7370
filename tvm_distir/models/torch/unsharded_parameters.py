# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Link tensors that a program holds outside of its arguments with the values that are in them.

FSDP2 makes its unsharded parameters of gathered buffers outside of the trace, and reads its shards
by views that it keeps: both are constants of a graph, and so are the buckets of gradients that
DistributedDataParallel keeps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import fx
from torch.fx.experimental import proxy_tensor
from torch.nn.parallel import DistributedDataParallel

Averaged: TypeAlias = "torch.futures.Future[torch.Tensor]"
Hook: TypeAlias = Callable[[object, "dist.GradBucket"], Averaged]
Links = list[tuple[torch.Tensor, fx.Node]]
"""Tensors, and the nodes of the buffers that they are views of."""


@contextlib.contextmanager
def unsharded_parameters(links: Links) -> Iterator[None]:
    """Note the buffers of the unsharded parameters of FSDP2 while a rank is traced."""
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
    except ImportError:
        yield
        return
    plain = FSDPParam.init_unsharded_param

    def noted(self: Any) -> None:
        plain(self)
        mode = proxy_tensor.get_proxy_mode()
        if mode is not None:
            slot = proxy_tensor.get_proxy_slot(self.all_gather_outputs[0], mode.tracer, None)
            if slot is not None:
                parameter = self._unsharded_param
                links.append((getattr(parameter, "_local_tensor", parameter), slot.proxy.node))

    FSDPParam.init_unsharded_param = noted
    try:
        yield
    finally:
        FSDPParam.init_unsharded_param = plain


@contextlib.contextmanager
def reduced_buckets() -> Iterator[list[torch.Tensor]]:
    """Note the buckets of DistributedDataParallel while a rank is traced.

    Its own reduction of gradients is not traced, so that a hook averages them where the program has
    none.
    """
    kind, buckets = DistributedDataParallel, list[torch.Tensor]()
    plain, register = kind.forward, kind.register_comm_hook

    def registered(self: DistributedDataParallel, state: object, hook: Hook) -> None:
        def noted(bucket: dist.GradBucket) -> Averaged:
            buckets.append(bucket.buffer())
            return hook(state, bucket)

        register(self, state, lambda _, bucket: noted(bucket))  # it may have no annotations

    def forward(self: DistributedDataParallel, *args: object, **kwargs: object) -> object:
        if not self._comm_hooks:
            self.register_comm_hook(self.process_group, _averaged)
        return plain(self, *args, **kwargs)

    for name, new in (("forward", forward), ("register_comm_hook", registered)):
        setattr(kind, name, new)
    try:
        yield buckets
    finally:
        for name, old in (("forward", plain), ("register_comm_hook", register)):
            setattr(kind, name, old)


def _averaged(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Averaged:
    """Average a bucket as DistributedDataParallel does: divide, then sum."""
    total = bucket.buffer() / group.size()
    dist.all_reduce(total, group=group)
    done: Averaged = torch.futures.Future()
    done.set_result(total)
    return done


def link_parameters(
    module: fx.GraphModule,
    links: Links,
    leaves: Sequence[torch.Tensor],
    buckets: Sequence[torch.Tensor],
) -> None:
    """Replace constants that are views of linked buffers, of the leaves of a graph, or of buckets.

    Buckets start as zeros: gradients are copied into them before they are read.
    """
    nodes = {node.name: node for node in module.graph.nodes}
    holders = [node for node in module.graph.nodes if node.op == "placeholder"]
    buffers = {id(tensor): nodes[node.name] for tensor, node in links if node.name in nodes}
    memory = {_address(leaf): node for leaf, node in zip(leaves, holders, strict=True)}
    with module.graph.inserting_before(next(n for n in module.graph.nodes if n not in holders)):
        for address, bucket in {_address(bucket): bucket for bucket in buckets}.items():
            zeros = module.graph.call_function(
                torch.ops.aten.zeros.default, ([bucket.numel()],), {"dtype": bucket.dtype}
            )
            memory[address] = zeros
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, str(node.target))
        if not isinstance(value, torch.Tensor):
            continue
        source = buffers.get(id(value))
        if source is None and _address(value):
            source = memory.get(_address(value))
        if source is None:
            continue
        with module.graph.inserting_before(node):
            new = _view(module.graph, source, value)
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
    module.recompile()


def _view(graph: fx.Graph, source: fx.Node, value: torch.Tensor) -> fx.Node:
    """View a part of a buffer as a tensor is a view of its memory."""
    shape, start = list(value.shape), value.storage_offset()
    if source.target is not torch.ops.aten.zeros.default or not value.is_contiguous():
        view = (source, shape, list(value.stride()), start)
        return graph.call_function(torch.ops.aten.as_strided.default, view)
    part = graph.call_function(
        torch.ops.aten.slice.Tensor, (source, 0, start, start + value.numel())
    )
    return graph.call_function(torch.ops.aten.view.default, (part, shape))


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, 0 where it has none."""
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.device.type == "meta":
        return 0
    return int(tensor.untyped_storage().data_ptr())
