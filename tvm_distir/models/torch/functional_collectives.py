# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace collectives that write into their operands by functional ones while a rank is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tvm_distir.support import ModelError

_REDUCTIONS = {0: "sum", 1: "avg", 2: "product", 3: "min", 4: "max"}
_LIBRARY = torch.library.Library("tvm_distir", "FRAGMENT")
_LIBRARY.define("send(Tensor x, int peer, int tag) -> Tensor")
_LIBRARY.define("recv(Tensor like, int peer, int tag) -> Tensor")
for _name in ("send", "recv"):
    _LIBRARY.impl(_name, lambda x, peer, tag: torch.empty_like(x), "CompositeExplicitAutograd")
    has_side_effect(getattr(torch.ops.tvm_distir, _name).default)


class UntraceableCollective(ModelError):
    """A collective of a program that has no meaning here (DIST0363)."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            "DIST0363",
            problem,
            location="trace",
            remedy="Write it with all_reduce, all_gather_into_tensor, reduce_scatter_tensor, "
            "all_to_all_single, broadcast, send or recv.",
        )


def group_of(value: Any) -> Any:
    """Return the process group that a call of a collective names or holds."""
    if isinstance(value, str):
        return dist.distributed_c10d._resolve_process_group(value)
    return value if isinstance(value, dist.ProcessGroup) else dist.ProcessGroup.unbox(value)


def _reduction(value: Any) -> str:
    kind = int(value.op())
    if kind not in _REDUCTIONS:
        names = {5: "BAND", 6: "BOR", 7: "BXOR", 8: "PREMUL_SUM"}
        raise UntraceableCollective(f"a reduction by {names.get(kind, kind)}")
    return _REDUCTIONS[kind]


class _Call:
    """A call of an in-place collective, with its arguments by name."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        names = [spec.name for spec in func._schema.arguments]
        self.values = {**dict(zip(names, args)), **kwargs}
        self.group = group_of(self.values["process_group"])
        self.size = self.group.size()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def functional(self, name: str, *args: Any) -> torch.Tensor:
        """Return the result of a functional collective of the group."""
        ops = torch.ops._c10d_functional
        return ops.wait_tensor(getattr(ops, name)(*args, self.group.group_name))

    def rank(self, position: int) -> int:
        """Return the global rank of a position in the group."""
        return int(dist.get_process_group_ranks(self.group)[position])

    def pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return the outputs of a collective with their inputs, of which there may be several."""
        if "output_tensor" in self.values:
            return iter([(self["output_tensor"], self["input_tensor"])])
        return zip(self["outputs"], self["inputs"], strict=True)


def _all_reduce(call: _Call) -> None:
    for x in call["tensors"]:
        x.copy_(call.functional("all_reduce", x, _reduction(call["reduce_op"])))


def _broadcast(call: _Call) -> None:
    x = call["tensors"][int(call["root_tensor"])]
    x.copy_(call.functional("broadcast", x, int(call["root_rank"])))


def _gather(call: _Call) -> None:
    for out, x in call.pairs():
        joined = call.functional("all_gather_into_tensor", x.reshape(-1), call.size)
        out.copy_(joined.view(out.shape))


def _gather_list(call: _Call) -> None:
    (outputs,), (x,) = call["output_tensors"], call["input_tensors"]
    joined = call.functional("all_gather_into_tensor", x.reshape(-1), call.size)
    for out, part in zip(outputs, joined.chunk(call.size), strict=True):
        out.copy_(part.view(out.shape))


def _reduce_scatter(call: _Call) -> None:
    kind = _reduction(call["reduce_op"])
    for out, x in call.pairs():
        part = call.functional("reduce_scatter_tensor", x.reshape(-1), kind, call.size)
        out.copy_(part.view(out.shape))


def _reduce_scatter_list(call: _Call) -> None:
    (out,), (inputs,) = call["output_tensors"], call["input_tensors"]
    joined = torch.cat([x.reshape(-1) for x in inputs])
    kind = _reduction(call["reduce_op"])
    out.copy_(call.functional("reduce_scatter_tensor", joined, kind, call.size).view(out.shape))


def _exchange(call: _Call) -> None:
    x, out, n = call["input"], call["output"], call.size
    sizes = [
        list(call[f"{side}_split_sizes"]) or [rows // n] * n
        for side, rows in (("output", out.shape[0]), ("input", x.shape[0]))
    ]
    out.copy_(call.functional("all_to_all_single", x.contiguous(), *sizes))


def _exchange_list(call: _Call) -> None:
    inputs, outputs = call["input_tensors"], call["output_tensors"]
    sizes = [[x.numel() for x in side] for side in (outputs, inputs)]
    joined = torch.cat([x.reshape(-1) for x in inputs])
    parts = call.functional("all_to_all_single", joined, *sizes).split(sizes[0])
    for out, part in zip(outputs, parts, strict=True):
        out.copy_(part.view(out.shape))


def _send(call: _Call) -> None:
    for x in call["tensors"]:
        torch.ops.tvm_distir.send(x, call.rank(int(call["dst"])), int(call["tag"]))


def _receive(call: _Call) -> None:
    for x in call["tensors"]:
        x.copy_(torch.ops.tvm_distir.recv(x, call.rank(int(call["src"])), int(call["tag"])))


_IN_PLACE: dict[str, Callable[[_Call], None]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce,
    "broadcast_": _broadcast,
    "_allgather_base_": _gather,
    "allgather_into_tensor_coalesced_": _gather,
    "allgather_": _gather_list,
    "_reduce_scatter_base_": _reduce_scatter,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter,
    "reduce_scatter_": _reduce_scatter_list,
    "alltoall_base_": _exchange,
    "alltoall_": _exchange_list,
    "send": _send,
    "recv_": _receive,
    "barrier": lambda call: None,
}


def _split_copy(joined: Any, sizes: Any, dim: int = 0, *, out: Any) -> None:
    for target, part in zip(out, joined.split(sizes, dim), strict=True):
        target.copy_(part)


def _chunk_concat(tensors: Any, dim: int, count: int, *, out: Any) -> None:
    out.copy_(torch._chunk_cat(tensors, dim, count).view(out.shape))


def _copy_in(inputs: Any, output: Any, sizes: Any, numel: int, rank: int) -> Any:
    return torch.cat([x.reshape(-1) for x in inputs]), output


_FSDP: dict[str, Callable[..., Any]] = {
    "split_with_sizes_copy": _split_copy,
    "chunk_cat": _chunk_concat,
    "all_gather_copy_in": _copy_in,
}
"""Operators by which FSDP2 moves shards to and from its buffers."""


class FunctionalCollectives(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """Runs ``c10d`` collectives as functional ones whose results are copied to their outputs."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run a call; those that are no in-place collectives as they are."""
        kwargs = kwargs or {}
        name = str(func._schema.name).partition("::")[2]
        if getattr(func, "namespace", "") == "fsdp" and name in _FSDP:
            return _FSDP[name](*args, **kwargs)
        if getattr(func, "namespace", "") != "c10d":
            return func(*args, **kwargs)
        if name not in _IN_PLACE:
            raise UntraceableCollective(f"the collective c10d.{name}")
        call = _Call(func, args, kwargs)
        _IN_PLACE[name](call)
        with _disable_current_modes():  # a handle that has completed
            work = dist.all_reduce(torch.zeros(1), group=call.group, async_op=True)
        boxed = work.boxed() if hasattr(work, "boxed") else work
        return _results(func, call, boxed)


def _results(func: Any, call: _Call, work: Any) -> Any:
    """Return what the schema of a collective says: its outputs and the handle."""
    if len(func._schema.returns) == 1:
        return work
    names = ("output_tensors", "output_tensor", "tensors")
    return call[next(name for name in names if name in call.values)], work
