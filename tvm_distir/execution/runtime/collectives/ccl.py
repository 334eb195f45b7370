# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the packed functions ``tvm_distir.ccl.*`` that compiled level-5 code calls.

Signatures, in destination-passing style (``groups``: the ranks of all groups, one group after
the other; ``op``: position in :data:`tvm_distir.core.ir.operators.names.REDUCE_OPS`):

========================  ==============================================================
``all_reduce``            x, groups, group_size, op, out
``all_gather``            x, groups, group_size, dim, out
``reduce_scatter``        x, groups, group_size, dim, op, out
``all_to_all``            x, groups, group_size, gather_dim, split_dim, out
``collective_permute``    x, groups, group_size, shift, wrap (0 or 1), out
``local_slice``           x, groups, group_size, dim, out
``partial``               x, groups, group_size, op, out
``axis_index``            groups, group_size, out
``exchange``              x, groups, group_size, whole shape, mesh shape of a group, labels
                          before, labels after, out
``send``                  x, tag, shape, then per side (source first) mesh shape, device ids,
                          labels; returns a copy of x
``recv``                  tag, shape, the same six, out
``<collective>_start``    as the collective, with 1 before ``out`` where the operand must be
                          copied, because its memory may be used again before the done
``done``                  the ``out`` of a start, and its operand where that is at hand
========================  ==============================================================

Each finds the fabric of the worker that calls it through :func:`worker`. Workers of a
:class:`.native_fabric.NativeFabric` call collectives of the native library; those of a job, whose
ranks are processes, exchange messages (:mod:`.posted_collectives`); :func:`register` chooses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsInt

import tvm
import tvm_ffi

from tvm_distir.core.collectives import Collective, Transfer
from tvm_distir.core.ir.operators import COLLECTIVES, PACKED_ARGS, PACKED_PREFIX, REDUCE_OPS
from tvm_distir.execution.runtime.program.async_names import DONE, START
from tvm_distir.execution.runtime.program.tensors import to_array, to_tensor
from tvm_distir.support import EngineError

from . import native_library as native
from .array_operations import NUMPY
from .fabric import Fabric
from .native_fabric import NativeFabric
from .posted_collectives import PostedCollectives
from .transfers import Transfers

_here = threading.local()


@contextmanager
def worker(fabric: Fabric, rank: int) -> Iterator[None]:
    """Make the calling thread the worker ``rank`` of a fabric."""
    _here.membership = (fabric, rank)
    try:
        with fabric.worker(rank):
            yield
    finally:
        del _here.membership


def _membership(name: str) -> tuple[Fabric, int]:
    membership: tuple[Fabric, int] | None = getattr(_here, "membership", None)
    if membership is None:
        problem = f"{PACKED_PREFIX}{name} was called outside of a run of several ranks"
        remedy = "Run the module with tvm_distir.run."
        raise EngineError("DIST0605", problem, location=name, remedy=remedy)
    return membership


def split_groups(ranks: Iterable[SupportsInt], size: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups of a call from the ranks of all groups, one group after the other."""
    flat = [int(r) for r in ranks]
    return tuple(tuple(flat[i : i + size]) for i in range(0, len(flat), size))


def _guarded(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """Hand a failure to the fabric before it leaves, with its class and text intact."""

    def call(*args: object) -> object:
        fabric, rank = _membership(name)
        try:
            return body(fabric, rank, *args)
        except BaseException as err:
            fabric.fail(rank, err)
            raise

    return call


def _decoded(name: str, args: Sequence[Any]) -> tuple[Collective, list[tvm.runtime.Tensor]]:
    """Return the collective of a call, and its operand, if any, from all but the result."""
    if name == "exchange":
        return _decoded_exchange(*args)
    names = PACKED_ARGS[name]
    end = len(args) - len(names)
    *operand, groups, size = args[:end]
    values = [int(v) for v in args[end:]]
    arguments = [(k, REDUCE_OPS[v] if k == "op" else v) for k, v in zip(names, values)]
    return Collective(name, split_groups(groups, int(size)), tuple(arguments)), operand


def _decoded_exchange(
    x: tvm.runtime.Tensor, groups: tvm_ffi.Shape, size: int, *parts: tvm_ffi.Shape
) -> tuple[Collective, list[tvm.runtime.Tensor]]:
    shape, mesh, before, after = (tuple(int(n) for n in part) for part in parts)
    positions = tuple(range(int(size)))
    args = (("shape", shape), ("src", (mesh, positions, before)), ("dst", (mesh, positions, after)))
    return Collective("exchange", split_groups(groups, int(size)), args), [x]


def _collective(name: str) -> Callable[..., Any]:
    def body(fabric: PostedCollectives, rank: int, *args: Any) -> None:
        *operands, out = args
        call, operand = _decoded(name, operands)
        arrays = fabric.arrays
        x = arrays.read(operand[0]) if operand else None
        arrays.write(out, fabric.collective(rank, call, x, arrays.result(out)))

    return body


def parse_transfer(args: Sequence[Any]) -> Transfer:
    """Return the transfer of a call from its tag, its shape and both sides."""
    tag, shape, *sides = args
    lists = [tuple(int(n) for n in side) for side in sides]
    src, dst = (lists[0], lists[1], lists[2]), (lists[3], lists[4], lists[5])
    return Transfer(int(tag), tuple(int(n) for n in shape), src, dst)


def _exchange(fabric: NativeFabric, rank: int, *args: Any) -> None:
    call, (x,) = _decoded("exchange", args[:-1])
    NUMPY.write(args[-1], fabric.exchange(rank, call, NUMPY.read(x)))


def _send(fabric: Transfers, rank: int, x: tvm.runtime.Tensor, *args: Any) -> object:
    array = fabric.arrays.read(x)
    fabric.send(rank, parse_transfer(args), array)
    return fabric.arrays.tensor(array)


def _recv(fabric: Transfers, rank: int, *args: Any) -> None:
    *transfer, out = args
    dtype = fabric.arrays.dtype(out)
    fabric.arrays.write(out, fabric.receive(rank, parse_transfer(transfer), dtype))


def functions(messages: bool = False) -> dict[str, Callable[..., Any]]:
    """Return all packed functions, by short name.

    Parameters
    ----------
    messages : bool
        Return those for the ranks of a job, whose collectives are messages, in place of those for
        workers of a native fabric.
    """
    bodies: dict[str, Callable[..., Any]]
    if messages:
        bodies = {name: _guarded(name, _collective(name)) for name in PACKED_ARGS}
    else:
        bodies = {name: native.collective(name) for name in PACKED_ARGS}
    exchange = _collective("exchange") if messages else _exchange
    ours: dict[str, Callable[..., Any]]
    ours = {"exchange": exchange, "send": _send, "recv": _recv}
    for name in COLLECTIVES:
        ours[name + START] = _start(name) if messages else _start_on_thread(bodies.get(name))
    ours[DONE.removeprefix(PACKED_PREFIX)] = _done
    bodies.update({name: _guarded(name, body) for name, body in ours.items()})
    return bodies


def _start_on_thread(collective: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the start of a native collective, or of an exchange, on a rank's progress thread."""

    def body(fabric: NativeFabric, rank: int, x: tvm.runtime.Tensor, *rest: Any) -> None:
        *operands, copies, out = rest
        operand = to_tensor(to_array(x)) if int(copies) else x
        run = collective or partial(_exchange, fabric, rank)
        fabric.start(rank, out.data_ptr(), lambda: run(operand, *operands, out))

    return body


def _start(name: str) -> Callable[..., Any]:
    """Return the start of a collective as messages."""

    def body(fabric: PostedCollectives, rank: int, *args: Any) -> None:
        *operands, copies, out = args
        call, (operand,) = _decoded(name, operands)
        arrays = fabric.arrays
        x = arrays.copy(arrays.read(operand)) if int(copies) else arrays.read(operand)
        fabric.start(rank, call, x, out.data_ptr(), partial(arrays.write, out), arrays.result(out))

    return body


def _done(
    fabric: NativeFabric | PostedCollectives, rank: int, out: tvm.runtime.Tensor, *_: object
) -> None:
    fabric.complete(rank, out.data_ptr())


def register(messages: bool = False) -> None:
    """Register the :func:`functions` with the FFI, in place of earlier ones.

    Raises
    ------
    DependencyError
        DIST0110 without the native library.
    """
    for name, function in functions(messages).items():
        tvm_ffi.register_global_func(PACKED_PREFIX + name, function, override=True)
