# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write kernels of independent iterations, as loops or as threads of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

_THREADS = 256


def is_on_gpu() -> bool:
    """Return whether kernels are written for a GPU, the current target."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and "gpu" in target.keys


def written_kernel(
    name: str,
    operands: Sequence[te.Tensor],
    result: tuple[str, Sequence[int], str],
    write: Callable[..., None],
    tag: str = "",
) -> te.Tensor:
    """Return the result of a kernel that is written over the flat buffers of its tensors.

    Parameters
    ----------
    name : str
    operands : sequence of te.Tensor
    result : (str, sequence of int, str)
        The name of the result, its shape and its dtype.
    write : callable
        Writes the statements, given the buffers of the operands and of the result.
    tag : str
        The tag of the op.
    """
    title, shape, dtype = result

    def body(inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]) -> tirx.Stmt:
        with IRBuilder() as builder:
            with T.seq_scope():
                write(*map(T.buffer_proxy, (*inputs, *outputs)))
            return builder.get()

    out = tirx.decl_buffer(shape, dtype, title, layout=None)
    return te.extern([shape], operands, body, dtype=dtype, out_buffers=[out], name=name, tag=tag)


@contextmanager
def parallel(count: int, on_gpu: bool) -> Iterator[Any]:
    """Yield the index of a loop, whose iterations are threads on a GPU."""
    if not on_gpu:
        with T.serial(count) as index:
            yield index
        return
    block, thread = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
    frames = [
        T.attr(thread, "thread_extent", _THREADS),
        T.attr(block, "thread_extent", -(-count // _THREADS)),
    ]
    index = tirx.Cast("int64", block) * _THREADS + tirx.Cast("int64", thread)
    with T.frame_scope(frames), T.If(index < count), T.Then():
        yield index
