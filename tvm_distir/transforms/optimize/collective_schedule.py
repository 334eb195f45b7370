# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split collectives into a start and a done, and schedule other work between them (level 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.ir.operators import (
    COLLECTIVES,
    DONE,
    TRANSFERS,
    collective_done,
    start,
    start_name,
)
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import with_body
from tvm_distir.hardware import System

from .binding_costs import BindingCosts
from .binding_rewriter import Editor, FunctionStep, rewrite_of, stepped
from .dependence import BlockNode, block_nodes, peak_bytes
from .list_schedule import ListSchedule, due_ranks
from .overlap_choice import OverlapChoice


@module_pass("local")
def SplitCollectives() -> Rewrite:
    """Split every collective into a start followed by its done.

    ``y = R.dist.all_reduce(x, ...)`` becomes ``t = R.dist.all_reduce_start(x, ...)`` and
    ``y = R.dist.collective_done(t)``. By itself this changes nothing: :func:`ScheduleCollectives`
    moves the two apart.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([FunctionStep(_Split, COLLECTIVES)], level=5)


class _Split(Editor):
    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Split a collective."""
        if kind not in COLLECTIVES:
            return value
        flying = self.emit(start(value), f"{var.name}_start")
        return self.normalize(collective_done(flying))


WINDOWS = (None, 512, 128, 32, 8, 2, 0)
"""The distances ahead of the first due binding at which another may run, tried in order."""


@module_pass("local")
def ScheduleCollectives(
    system: System | str = "a100",
    *,
    memory_limit_bytes: int | None = None,
    ahead_bytes: int | None = None,
    activations: bool = True,
) -> Rewrite:
    """Schedule other work while collectives are in flight.

    Orders the bindings of every block by a simulated clock: a start is issued as soon as its
    operand is there, a done when its collective has ended, or when nothing else can run; between
    them goes what is due next. What only prepares the operand of a start is due as soon as its
    own operands are there. Effects keep their order; where entries share a mesh, collectives do
    too, as all of its devices must meet in one order. Collectives of called functions stay in
    them.

    Parameters
    ----------
    system : System or str
        System whose times determine the simulated clock.
    memory_limit_bytes : int, optional
        Maximum bytes of the live values of a block on a device. None: see
        ``ahead_bytes``. Where running ahead takes more, it is narrowed step by step; a block
        that takes more in any case keeps its order.
    ahead_bytes : int, optional
        Maximum additional bytes over the original order. None: a sixteenth of its bytes.
    activations : bool
        Whether collectives of activations overlap with other work. Otherwise each is waited for at
        once, as those of tensor parallelism are in most frameworks; gathers of weights, reductions
        of gradients and rings overlap.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    resolved = System.resolve(system)
    kinds = tuple(start_name(kind) for kind in COLLECTIVES)

    def schedule(mod: ir.IRModule) -> ir.IRModule:
        step = FunctionStep(
            _Schedule, kinds, system=resolved, limit_bytes=memory_limit_bytes,
            more_bytes=ahead_bytes,
            choice=None if activations else OverlapChoice(mod),
        )  # fmt: skip
        return stepped(mod, [step], 5)

    return schedule


class _Schedule(Editor):
    def prepare(
        self,
        system: System,
        limit_bytes: int | None,
        more_bytes: int | None,
        choice: OverlapChoice | None,
    ) -> None:
        """Take the clock, the bounds of memory, and which collectives overlap."""
        rows = [row for rows in self.scan.blocks for row in rows]
        self.overlapped = None if choice is None else choice.of(self.name, self.fn.params, rows)
        self.limit_bytes, self.more_bytes = limit_bytes, more_bytes
        io: Any = self.fn.attrs.get(IO_ATTR, {}) if self.fn.attrs else {}
        self.devices = tuple(int(d) for d in io.get("devices", ()))
        self.costs = BindingCosts(self.mod, system).of(self.scan.reading, self.devices)

    def run(self) -> relax.Function:
        """Return the function with the bindings of its blocks reordered."""
        blocks, first = [], 0
        nodes_of_blocks = block_nodes(self.scan, self.costs, bool(self.devices))
        for block, rows, nodes in zip(
            self.fn.body.blocks, self.scan.blocks, nodes_of_blocks, strict=True
        ):
            order = self._best(nodes, rows, first)
            first += len(rows)
            blocks.append(type(block)([rows[i][0] for i in order]))
        fn = self.fn
        return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))

    def _best(self, nodes: Sequence[BlockNode], rows: Sequence[Any], first: int) -> Sequence[int]:
        """Return the best order within the memory limit, or the original order.

        ``first`` is the number of the block's first binding.
        """
        original = range(len(nodes))
        if not any(row[3] == DONE for row in rows):
            return original
        limit_bytes = self.limit_bytes
        if limit_bytes is None:
            original_bytes = peak_bytes(nodes, original)
            more_bytes = original_bytes // 16 if self.more_bytes is None else self.more_bytes
            limit_bytes = original_bytes + more_bytes
        spent_ps = [self._spent_ps(row[3], n) for n, row in enumerate(rows, first)]
        blocking = self._blocking(nodes, rows)
        due = due_ranks(nodes, spent_ps, blocking)
        for window in WINDOWS:
            order = ListSchedule(nodes, spent_ps, due, window, blocking).run()
            if peak_bytes(nodes, order) <= limit_bytes:
                return order
        return original

    def _blocking(self, nodes: Sequence[BlockNode], rows: Sequence[Any]) -> dict[int, int]:
        """Return the done of each start that is waited for at once."""
        return {
            node.done_of: number
            for number, node in enumerate(nodes)
            if node.done_of is not None
            and self.overlapped is not None
            and rows[node.done_of][1] not in self.overlapped
        }

    def _spent_ps(self, kind: str | None, number: int) -> int:
        """Return the time of a binding on its stream; transfers have a separate stream."""
        return 0 if kind in TRANSFERS else self.costs.picoseconds(number)
