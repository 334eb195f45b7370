# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Link tensors that a program holds outside of its arguments with the values that are in them.

FSDP2 makes its unsharded parameters of gathered buffers outside of the trace, and reads its shards
by views that it keeps: both are constants of a graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental import proxy_tensor

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


def link_parameters(module: fx.GraphModule, links: Links, leaves: Sequence[torch.Tensor]) -> None:
    """Replace constants that are views of linked buffers, or of the leaves of a graph."""
    nodes = {node.name: node for node in module.graph.nodes}
    holders = [node for node in module.graph.nodes if node.op == "placeholder"]
    buffers = {id(tensor): nodes[node.name] for tensor, node in links if node.name in nodes}
    memory = {_address(leaf): node for leaf, node in zip(leaves, holders, strict=True)}
    for node in list(module.graph.nodes):
        if node.op != "get_attr":
            continue
        value = getattr(module, str(node.target))
        if not isinstance(value, torch.Tensor):
            continue
        source = buffers.get(id(value))
        if source is None and _address(value):
            source = memory.get(_address(value))
        if source is None:
            continue
        with module.graph.inserting_before(node):
            view = (source, list(value.shape), list(value.stride()), value.storage_offset())
            new = module.graph.call_function(torch.ops.aten.as_strided.default, view)
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
        module.graph.erase_node(node)
    module.recompile()


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, 0 where it has none."""
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.device.type == "meta":
        return 0
    return int(tensor.untyped_storage().data_ptr())
