# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run modules with ``R.ccl`` on workers of Disco, with collectives between threads of a CPU.

The wheel of TVM has Disco, but no library of collectives. A session without one calls functions
with the prefix ``runtime.disco..``, and these are defined here, on NumPy.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir
from tvm.contrib import tvmjs

from tests.quick_compilation import QUICK_TARGET
from tvm_distir.execution.runtime.program.joining import gather_outputs
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.support import repair_disco

Array = np.ndarray[Any, Any]
_TIMEOUT_S = 60.0
_REDUCE = (np.add, np.multiply, np.minimum, np.maximum)


def _rank() -> int:
    return int(tvm.get_global_func("runtime.disco.worker_rank")())


class Exchange:
    """Blocks in which workers of a session leave arrays for each other, per group."""

    def __init__(self, count: int, groups: int) -> None:
        self.count, self.size = count, count // groups
        self.barriers = {False: [threading.Barrier(count)]}
        self.barriers[True] = [threading.Barrier(self.size) for _ in range(groups)]
        self.left: dict[int, Array | None] = {}
        self.calls: list[str] = []

    def meet(self, mine: Array | None, inner: bool) -> tuple[list[Array | None], int]:
        """Return what the workers of the group left, in order, and the caller's position."""
        rank = _rank()
        size = self.size if inner else self.count
        group, position = divmod(rank, size)
        barrier = self.barriers[inner][group]
        self.left[rank] = mine
        barrier.wait(_TIMEOUT_S)
        arrays = [self.left[group * size + i] for i in range(size)]
        barrier.wait(_TIMEOUT_S)
        return arrays, position


_exchange: Exchange


def _array(tensor: Any) -> Array | None:
    return None if tensor is None else np.array(tensor.numpy())


def _all_reduce(send: Any, kind: int, inner: bool, recv: Any) -> None:
    arrays, _ = _exchange.meet(_array(send), bool(inner))
    wide = "float32" if arrays[0].dtype.itemsize == 2 else arrays[0].dtype
    total = functools.reduce(_REDUCE[kind], [a.astype(wide) for a in arrays])
    recv.copyfrom(total.astype(arrays[0].dtype))
    if _rank() == 0:
        _exchange.calls.append("all_reduce")


def _all_gather(send: Any, inner: bool, recv: Any) -> None:
    arrays, _ = _exchange.meet(_array(send), bool(inner))
    recv.copyfrom(np.concatenate([a.reshape(-1) for a in arrays]).reshape(recv.shape))
    if _rank() == 0:
        _exchange.calls.append("all_gather")


def _broadcast(send: Any, inner: bool, recv: Any) -> None:
    arrays, _ = _exchange.meet(_array(send), bool(inner))
    recv.copyfrom(arrays[0].reshape(recv.shape))


def _scatter(send: Any, inner: bool, recv: Any) -> None:
    arrays, position = _exchange.meet(_array(send), bool(inner))
    parts = arrays[0].reshape(len(arrays), -1)
    recv.copyfrom(parts[position].reshape(recv.shape))


_FUNCTIONS = {
    "allreduce": _all_reduce,
    "allgather": _all_gather,
    "broadcast_from_worker0": _broadcast,
    "scatter_from_worker0": _scatter,
}


@functools.cache
def _session(count: int, groups: int) -> Any:
    for name, function in _FUNCTIONS.items():
        tvm_ffi.register_global_func(f"runtime.disco..{name}", function, override=True)
    return repair_disco().ThreadedSession(count, groups)


class Workers:
    """The workers that run a module which ``td.to_ccl`` wrote."""

    def __init__(self, mod: ir.IRModule, folder: Path) -> None:
        global _exchange
        about = mod.attrs["dist.workers"]
        self.count, groups = int(np.prod([int(n) for n in about["sizes"]])), int(about["groups"])
        self.folder, self.session = folder, _session(self.count, groups)
        _exchange = self.exchange = Exchange(self.count, groups)
        library = str(folder / "workers.so")
        tvm.compile(mod, QUICK_TARGET).export_library(library)
        self.module = self.session.load_vm_module(library, tvm.cpu(0))

    def tensor(self, parts: Sequence[Array]) -> Any:
        """Return a tensor of which each worker has its part."""
        dtype = "bfloat16" if parts[0].dtype.name == "bfloat16" else str(parts[0].dtype)
        result = self.session.empty(parts[0].shape, dtype, tvm.cpu(0))
        for rank, part in enumerate(parts):
            result.debug_copy_from(rank, tvm.runtime.tensor(part))
        return result

    def weights(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Store weights as MLC does, and load them with TVM's ``ShardLoader``."""
        tvmjs.dump_tensor_cache(dict(arrays), str(self.folder), encode_format="raw")
        path = self.folder / "tensor-cache.json"
        records = [r for f in json.loads(path.read_text())["records"] for r in f["records"]]
        create = self.session.get_global_func("runtime.disco.ShardLoader")
        loader = create(str(path), path.read_text(), "", self.module)
        load = self.session.get_global_func("runtime.disco.ShardLoaderLoad")
        return {r["name"]: load(loader, tvm_ffi.Shape([i])) for i, r in enumerate(records)}

    def run(self, function: str, inputs: Sequence[Any]) -> list[list[Array]]:
        """Return the results of every worker."""
        results = self.module[function](*inputs)
        flat = []
        for rank in range(self.count):
            value = results.debug_get_from_remote(rank)
            fields = [value] if hasattr(value, "numpy") else list(value)
            flat.append([field.numpy() for field in fields])
        return flat


def run_on_workers(
    mod: ir.IRModule, entry: Any, values: Sequence[Array], folder: Path, load: int | None = None
) -> tuple[list[Any], tuple[str, ...]]:
    """Return full outputs of a written module, and the collectives that ran.

    Parameters
    ----------
    mod : IRModule
    entry : EntryFunction
        What ``dist.io`` of the module at level 5 says.
    values : sequence of array
        The full inputs, by index.
    folder : Path
    load : int, optional
        The index of the first input that ``ShardLoader`` loads.
    """
    workers = Workers(mod, folder)
    local = LocalInputs(dict(enumerate(values)))
    loaded: dict[str, Any] = {}
    if load is not None:
        loaded = workers.weights({p.name: values[p.index] for p in entry.inputs if p.index >= load})
    inputs = [
        loaded[port.name]
        if port.name in loaded
        else workers.tensor([local.part(entry, port, rank) for rank in entry.ranks])
        for port in entry.inputs
    ]
    workers.exchange.calls.clear()
    results = workers.run(entry.function, inputs)
    calls = tuple(workers.exchange.calls)
    return gather_outputs([entry], dict(enumerate(results))), calls
