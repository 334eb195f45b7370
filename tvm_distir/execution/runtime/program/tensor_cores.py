# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Schedule products of 16-bit floats on tensor cores, with accumulators of float32.

DLight has a schedule for products of float16. Products of bfloat16 differ by their type alone,
so they are scheduled as products of float16 and get their type back.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import tvm
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.dlight.gpu.matmul import (
    MatmulTensorization,
    detect_iter_traits,
    get_reduction_blocks,
)

_HALF, _BRAIN = "float16", "bfloat16"
_FIRST_ARCH = {_HALF: 70, _BRAIN: 80}
"""The first compute capability whose tensor cores multiply a type."""
_TILE = (128, 128, 64)
"""Rows, columns and contracted size that the schedule pads a product to."""
_MOST_PADDING = 8
"""The largest ratio of padded to real work: general cores are slower by more than this."""


def _stack_without_source(context: int = 1) -> list[inspect.FrameInfo]:
    """Return what ``inspect.stack`` does, without lines of source."""
    frames = list[inspect.FrameInfo]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append(
            inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        )
        frame = frame.f_back
    return frames


@contextmanager
def _quick_parser() -> Iterator[None]:
    """Let TVM parse functions without a search for the source of each caller.

    The search walks all modules of the process for each function: the intrinsics take 40 s where
    PyTorch is loaded, and 3 s without it. Only functions inside of classes need it.
    """
    stack = inspect.stack
    inspect.stack = _stack_without_source
    try:
        yield
    finally:
        inspect.stack = stack


@functools.cache
def _register_intrinsics() -> None:
    """Register TVM's intrinsics of tensor cores, once per process."""
    with _quick_parser():
        import tvm.s_tir.tensor_intrin.cuda  # noqa: F401


def _retyped(mod: ir.IRModule, old: str, new: str) -> ir.IRModule:
    """Return a module with all values of one type in another."""
    return ir.load_json(ir.save_json(mod).replace(f'"{old}"', f'"{new}"'))


def _sizes(sch: s_tir.Schedule) -> tuple[str, list[int]] | None:
    """Return the operand type, and the rows, columns and contracted size of a kernel's product.

    None for kernels without a product, and for one whose accumulators are not float32.
    """
    blocks = sch.get_child_blocks(sch.get_sblock("root", func_name="main"))
    reductions = get_reduction_blocks(sch, blocks)
    if reductions is None:
        return None
    block = sch.get(reductions[0])
    traits = detect_iter_traits(block)
    types = {str(read.source.dtype) for read in block.reads}
    if traits is None or len(types) != 1 or str(block.writes[0].source.dtype) != "float32":
        return None
    sizes = dict.fromkeys((1, 2, 3), 1)
    for trait in traits[3]:
        if not isinstance(trait.extent, tirx.IntImm):
            return None
        if trait.kind.value in sizes:
            sizes[trait.kind.value] *= int(trait.extent)
    return types.pop(), list(sizes.values())


class TensorCoreProduct(GPUScheduleRule):  # type: ignore[misc,unused-ignore]
    """A rule of DLight for products of float16 and bfloat16 of static sizes on NVIDIA GPUs.

    Products that are so small that most of a tile would be padding are left to other rules.
    """

    def apply(
        self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool
    ) -> s_tir.Schedule | None:
        """Return the schedule of a kernel, or None."""
        if not isinstance(func, tirx.PrimFunc) or target.kind.name != "cuda":
            return None
        mod = ir.IRModule({"main": func})
        product = _sizes(s_tir.Schedule(mod))
        if product is None:
            return None
        dtype, sizes = product
        padded = [-(-size // tile) * tile for size, tile in zip(sizes, _TILE, strict=True)]
        arch = str(target.attrs.get("arch", "")).removeprefix("sm_").rstrip("af")
        if not arch.isdigit() or int(arch) < _FIRST_ARCH.get(dtype, math.inf):
            return None
        if math.prod(padded) > _MOST_PADDING * math.prod(sizes):
            return None
        _register_intrinsics()
        if dtype == _HALF:
            return MatmulTensorization().apply(func, target, tunable)
        if f'"{_HALF}"' in ir.save_json(mod):  # its values would change their type as well
            return None
        half = _retyped(mod, _BRAIN, _HALF)["main"]
        schedule = MatmulTensorization().apply(half, target, tunable)
        return schedule and s_tir.Schedule(_retyped(schedule.mod, _HALF, _BRAIN))
