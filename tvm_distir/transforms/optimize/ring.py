# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute attention block by block around a ring (level 5), so no device holds all keys.

Liu et al. 2023, "Ring Attention with Blockwise Transformers"; the running maximum and sum are those
of Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import relax_functions
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import BlockWriter, let_out, variables, with_body
from tvm_distir.core.rewriting.native import pruned
from tvm_distir.support import LoweringError

from .binding_rewriter import Editor, FunctionStep, stepped
from .function_facts import Row, Scan
from .named_axes import numbers_of_axes
from .ring_attention_op import RingAttentionOps
from .ring_block import Stats
from .ring_nodes import Region
from .ring_phase import RingPhase
from .ring_regions import RegionFinder
from .ring_sources import REMEDY


@module_pass("local")
def RingAttention(axes: Sequence[str] = ()) -> Rewrite:
    """Pass keys and values of attention around a ring instead of gathering them.

    Where keys and values are gathered along a mesh axis of ``n`` devices, for ``nn.attention`` or
    products and a softmax over the keys, each device starts with its own block of them and hands
    what it has to the next one, ``n - 1`` times, by ``collective_permute``. Of each block it
    computes the scores of its queries, with masks and biases cut to the block, and keeps a running
    maximum, sum and result, in float32 at least. As many bytes are sent as by the gathers; one
    block is held besides the own one. Sums are in another order.

    In training the backward pass does the same, and what is reduced to the owners of keys and
    values, their gradients, follows these around. Where all keys have to come by before the next
    op can work on one of them, as in a softmax that is recomputed, they go around once more.

    Parameters
    ----------
    axes : sequence of str
        Names of the mesh axes; without any, nothing changes.

    Returns
    -------
    pass : tvm.transform.Pass
        It raises MeshError DIST0206 if no mesh has such an axis, LoweringError DIST0511 if
        rows gathered along one are read by what cannot be done in blocks, or there are none.
    """

    def ring_attention(mod: ir.IRModule) -> ir.IRModule:
        numbers = numbers_of_axes(mod, axes, "RingAttention")
        kinds = ("all_gather",)
        steps = [
            FunctionStep(transform, kinds, axes=numbers) for transform in (RingAttentionOps, _Ring)
        ]
        new = stepped(mod, steps, 5)
        if new is mod and axes:
            raise LoweringError(
                "DIST0511",
                f"no attention gathers keys and values along {' or '.join(axes)}",
                place=", ".join(str(gv.name_hint) for gv, _ in relax_functions(mod)),
                remedy=REMEDY,
            )
        return new

    return ring_attention


class _Ring(Editor):
    """Rewriter of computations over gathered keys into steps around a ring.

    Bindings keep their order, but that each phase of a region precedes the first that reads
    what it gives, and behind all that it reads.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        name: str,
        fn: relax.Function,
        scan: Scan,
        axes: dict[str, tuple[int, ...]],
    ) -> None:
        super().__init__(mod, name, fn, scan)
        self._regions = [
            RegionFinder(name, rows, scan.values, scan.readers, axes).run() for rows in scan.blocks
        ]

    def run(self) -> relax.Function:
        """Return the function, or the given function if it has no attention over gathered keys."""
        if not any(self._regions):
            return self.fn
        fn, blocks = self.fn, []
        for block, rows, regions in zip(
            fn.body.blocks, self.scan.blocks, self._regions, strict=True
        ):
            self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
            _Order(self, rows, regions).run()
            blocks.append(self.writer.block())
        new_blocks, result = let_out(blocks, fn.body.body)
        new_blocks, _ = pruned(new_blocks, result)
        return with_body(fn, fn.params, new_blocks, result, bool(fn.is_pure))


class _Order:
    """Writer of a block's bindings and the phases of its regions, in order of demand."""

    def __init__(self, editor: _Ring, rows: Sequence[Row], regions: Sequence[Region]) -> None:
        self._editor, self._rows = editor, rows
        self._row = {row[1]: row for row in rows}
        self._phases: list[RingPhase] = []
        self._from: dict[Any, int] = {}
        self._walked: set[Any] = set()
        self._before: list[list[int]] = []
        for region in regions:
            self._walked.update(region.nodes, region.sources)
            stats: Stats = {}
            first = len(self._phases)
            for number in sorted({node.phase for node in region.nodes.values()}):
                phase = RingPhase(region, number, editor.emit, stats)
                if phase.outputs or phase.has_softmax:
                    self._before.append(list(range(first, len(self._phases))))
                    self._from.update(dict.fromkeys(phase.outputs, len(self._phases)))
                    self._phases.append(phase)
        self._done: set[Any] = set()

    def run(self) -> None:
        """Write everything outside of the regions, and before each binding its inputs."""
        readers = self._editor.scan.readers
        for _, var, _, _ in self._rows:
            beyond = any(reader not in self._row for reader in readers.get(var, ()))
            if beyond or var not in self._walked:
                self._demand(var)

    def _demand(self, var: Any) -> None:
        """Write a binding after everything that it needs."""
        waiting: list[Any] = [self._task(var)]
        while waiting:
            task = waiting[-1]
            missing = [t for t in self._needs(task) if t not in self._done]
            if missing:
                waiting.extend(missing)
                continue
            waiting.pop()
            if task not in self._done:
                self._done.add(task)
                self._write(task)

    def _task(self, var: Any) -> Any:
        """Return the task of a variable: the number of a phase, or the variable of a binding."""
        return self._from.get(var, var)

    def _needs(self, task: Any) -> list[Any]:
        if isinstance(task, int):
            reads: Iterable[Any] = self._phases[task].reads
            return [*self._before[task], *(self._task(v) for v in reads if v in self._row)]
        return [self._task(v) for v in variables(self._row[task][2]) if v in self._row]

    def _write(self, task: Any) -> None:
        writer = self._editor.writer
        if not isinstance(task, int):
            writer.bindings.append(self._row[task][0])
            return
        for var, value in self._phases[task].run().items():
            writer.bind(var, value)
