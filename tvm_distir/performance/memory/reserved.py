# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the memory that PyTorch takes from a device: segments, workspaces, context and NCCL."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tvm_distir.core.plan import FETCH, RECV
from tvm_distir.performance.program.parts import reached
from tvm_distir.performance.program.program import Program

from .account import MemoryAccount
from .caching_allocator import CachingAllocator
from .call_variants import CallVariant
from .last_uses import deaths_of
from .rank_events import RankEvents
from .ranks import RankMemories
from .segments import MIB, SegmentAllocator

CONTEXT_BYTES = 512 * MIB
"""Assumed: what ``nvidia-smi`` shows of a process with PyTorch's kernels and no tensors, which is
300 to 600 MiB by device and version."""

COMMUNICATOR_BYTES = 2 * 16 * 4 * MIB
"""Assumed: buffers of ``NCCL_BUFFSIZE`` (4 MiB by default, see NCCL's documentation of environment
variables) to both neighbours of a ring, on 16 channels, per group of devices."""

WORKSPACE_BYTES = 2 * 4 * MIB + 8 * 16 * 1024
"""The workspace of cuBLAS of a stream, which the first product allocates and nothing frees: the
default of ``CUBLAS_WORKSPACE_CONFIG``, see "cuBLAS workspaces" in PyTorch's notes on CUDA
semantics."""


class Replay:
    """Replay of the calls of a program with a block for each buffer.

    Parameters
    ----------
    framework : CachingAllocator
        The lifetimes of the buffers.
    segments : SegmentAllocator
        Where the blocks are.
    """

    def __init__(self, framework: CachingAllocator, segments: SegmentAllocator) -> None:
        self.framework, self.segments = framework, segments

    def call(self, use: CallVariant, owned: dict[int, int]) -> dict[int, int]:
        """Run a call that owns the blocks of some parameters; return what is left, by buffer."""
        framework, segments = self.framework, self.segments
        lives, shape, at = framework.lives[use.function], framework.shape(use), dict(owned)
        for param in shape.owned & lives.unread:
            self._free(at, param)
        for change in framework.changes(lives, shape):
            step = change.step
            if change.inner:
                branch = max(change.inner, key=lambda call: framework.level(call.use).peak)
                for buffer in change.handed - set(branch.handed):
                    self._free(at, buffer)
                arguments = {
                    p: at.pop(buffer) for buffer, p in branch.handed.items() if buffer in at
                }
                left = self.call(branch.use, arguments)
                callee = framework.lives[branch.use.function]
                slots_written = (*step.writes, *step.new[len(step.new) - len(callee.lent) :])
                for buffer, result in zip(slots_written, callee.results, strict=False):
                    if buffer in step.new and buffer not in at and result in left:
                        at[buffer] = left.pop(result)
                for position in left.values():
                    segments.give(position)
            for buffer in step.new:
                if shape.sizes[buffer] and buffer not in at:
                    at[buffer] = segments.take(shape.sizes[buffer])
            for buffer in change.freed:
                self._free(at, buffer)
        return at

    def _free(self, at: dict[int, int], buffer: int) -> None:
        if buffer in at:
            self.segments.give(at.pop(buffer))

    def rank(self, memories: RankMemories, walk: RankEvents) -> None:
        """Run the events of a rank."""
        at: dict[int, int] = {}
        for event, death in zip(walk.events, deaths_of(walk), strict=True):
            ids = event.ids.tolist()
            if event.unit is None:
                for number in ids if event.name in (RECV, FETCH) else ():
                    if walk.sizes[number]:
                        at[number] = self.segments.take(walk.sizes[number])
                for buffer in death.buffers:
                    self._free(at, ids[buffer])
                continue
            for number, use, rest in memories.levels.uses(event.unit, death):
                part = event.unit.parts[number]
                numbers = {p: ids[death.same[part.reads[p]]] for p, _, _ in use.owned}
                left = self.call(use, {p: at.pop(n) for p, n in numbers.items() if n in at})
                results = self.framework.lives[use.function].results
                for buffer, result in zip(part.makes, results, strict=False):
                    if buffer >= 0 and result in left:
                        at[ids[buffer]] = left.pop(result)
                for position in left.values():
                    self.segments.give(position)
                for buffer in rest:
                    self._free(at, ids[buffer])


def reserved_account(program: Program, number: int, expandable: bool) -> MemoryAccount:
    """Return the memory of the devices of an entry, or of a rank, as PyTorch reserves it.

    The peak is what the device has to have: segments, context and buffers of communicators. The
    step is run once, behind what is there from the beginning, the workspace of products included.

    Parameters
    ----------
    program : Program
    number : int
        The number of the entry, or of the rank.
    expandable : bool
        Whether segments are expandable.
    """
    framework, segments = CachingAllocator(program), SegmentAllocator(expandable)
    roots = program.as_stages.functions_of(number)
    workspace = WORKSPACE_BYTES if _has_products(program, roots) else 0
    memories = RankMemories(program, framework)
    account = memories.of(number).account
    for walk, _ in memories.walks(number, memories.steps[number]):
        if segments.most_allocated < account.peak_bytes + workspace:  # cut steps may lack some
            segments = SegmentAllocator(expandable)
            if workspace:
                segments.take(workspace)
            for size in (buffer.bytes for buffer in memories.resident(walk) if buffer.bytes):
                segments.take(size)
            Replay(framework, segments).rank(memories, walk)
    overhead = CONTEXT_BYTES + _communicators(program, roots) * COMMUNICATOR_BYTES
    unused = segments.reserved - account.peak_bytes - workspace
    parts = {"workspace": workspace} if workspace else {}
    return dataclasses.replace(
        account,
        allocator="pytorch",
        peak_bytes=segments.reserved + overhead,
        fragmentation_bytes=0,
        at_peak={**account.at_peak, **parts, "unused": unused, "context": overhead},
    )


def _has_products(program: Program, roots: Iterable[str]) -> bool:
    """Return whether the functions of a device multiply matrices."""
    ops = (op for name in reached(program.functions, roots) for op in program.functions[name].ops)
    return any(op.kernel_class == "matmul" for op in ops)


def _communicators(program: Program, roots: Iterable[str]) -> int:
    """Return the number of groups that the functions of a device communicate in."""
    return len(
        {
            (op.mesh, op.mesh_axes)
            for name in reached(program.functions, roots)
            for op in program.functions[name].ops
            if op.kind == "collective"
        }
    )
