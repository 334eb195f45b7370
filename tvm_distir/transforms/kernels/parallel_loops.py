# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write loops whose iterations are independent, as loops or as threads of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

_THREADS = 256


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
