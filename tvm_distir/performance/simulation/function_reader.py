# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read functions of a program into a :class:`.lowering.Lowering`, callees first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tvm_distir.hardware import PICOSECONDS
from tvm_distir.performance.event_loop.function_summaries import COMM_PORT, COMPUTE_PORT
from tvm_distir.performance.program.checks import call_order
from tvm_distir.performance.program.parts import Op, reached
from tvm_distir.performance.program.program import Program
from tvm_distir.support import Steps, memoized_steps, unrolled

from .device_results import Branch
from .lowering import LoweredFunction, Lowering, SimulatedStep, flags_of
from .op_costs import COMPUTE, SLOWDOWN, OpCosts, OpRow

_AT_HAND = -1
_CALL = (COMPUTE_PORT, 0, 0, 0)


def read_functions(
    into: Lowering, program: Program, costs: OpCosts, roots: Iterable[str]
) -> dict[str, int]:
    """Read the functions that roots reach.

    Parameters
    ----------
    into : Lowering
        Gets them, with their rows and branches.
    program : Program
    costs : OpCosts
        The costs of the ops of the program.
    roots : iterable of str
        Names of functions.

    Returns
    -------
    dict of str to int
        The number of each function in ``into.functions``.
    """
    reader = _Reader(into, program, costs)
    needed = reached(program.functions, roots)
    return {
        name: unrolled(reader.number(name, 0))
        for name in call_order(program.functions)
        if name in needed
    }


class _Reader:
    """Reader of the functions of a program."""

    def __init__(self, into: Lowering, program: Program, costs: OpCosts) -> None:
        self.into, self.program, self.costs = into, program, costs
        self._rows: dict[tuple[str, int], int] = {}

    def _row(self, name: str, position: int) -> int:
        key = name, position
        if key not in self._rows:
            self._rows[key] = len(self.into.rows)
            self.into.rows.append(self.costs.row(name, position))
        return self._rows[key]

    def _slowdown(self, name: str, position: int, conditions: list[int]) -> Iterator[SimulatedStep]:
        """Yield the delay of kernels beside a started collective, if there is any."""
        key = name, -1 - position
        if key not in self._rows:
            slowdown = self.costs.slowdown(self.into.rows[self._row(name, position)])
            self._rows[key] = len(self.into.rows) if slowdown is not None else -1
            if slowdown is not None:
                self.into.rows.append(slowdown)
        row = self._rows[key]
        if row >= 0:
            yield SimulatedStep(row, -1, self.into.rows[row].op.name, conditions, [])

    @memoized_steps
    def number(self, name: str, gates: int) -> Steps[int]:
        """Return the number of a function that waits for so many conditions."""
        fn = self.program.functions[name]
        params = len(fn.params) + gates
        conditions = list(range(len(fn.params), params))
        value = [_AT_HAND] * len(fn.values)
        for number, index in enumerate(fn.params):
            value[index] = number
        values = params
        steps: list[SimulatedStep] = []
        pending: list[tuple[tuple[int, ...], SimulatedStep]] = []
        copied: dict[str, list[int]] = {}  # the last copy in each direction
        for position, op in enumerate(fn.ops):
            ins = [value[index] for index in op.inputs]
            if op.kind == "view":
                value[op.outputs[0]] = ins[0]
                continue
            if op.kind == "copy":
                ins += copied.get(op.collective, [])
            if op.kind == "wait":
                pending = [(ends, each) for ends, each in pending if op.inputs[0] not in ends]
            elif op.kind not in ("collective", "copy"):
                steps += [each for _, each in pending]
                pending = []
            if op.callees:
                callee, ins = yield from self._taken(name, op, ins, conditions)
                row = -1
            else:
                row, callee, ins = self._row(name, position), -1, [*ins, *conditions]
            if op.kind == "wait" or (op.kind == "transfer" and op.collective == "send"):
                outs = []
                value[op.outputs[0]] = ins[0]
            else:
                outs = list(range(values, values + len(op.outputs)))
                values += len(outs)
                for index, result in zip(op.outputs, outs, strict=True):
                    value[index] = result
            if op.kind == "copy":
                copied[op.collective] = outs[:1]
            steps.append(SimulatedStep(row, callee, op.name, ins, outs))
            if op.is_start:
                pending += [
                    (op.outputs, each) for each in self._slowdown(name, position, conditions)
                ]
        steps += [each for _, each in pending]
        return self._add(name, params, values, steps, [value[index] for index in fn.results])

    def _taken(
        self, name: str, op: Op, ins: list[int], conditions: list[int]
    ) -> Steps[tuple[int, list[int]]]:
        """Return the callee and operands of a call; of a branch, the more expensive side."""
        if op.kind == "call":
            number = yield self.number(op.callee, len(conditions))
            return number, [*ins, *conditions]
        gates = len(conditions) + 1
        numbers = []
        for callee in op.callees:
            numbers.append((yield self.number(callee, gates)))
        spent_ps = [self.into.functions[number].work_ps for number in numbers]
        side = int(spent_ps[1] > spent_ps[0])
        if not conditions:
            self.into.branches.append(
                Branch(
                    f"{name}/{op.name}",
                    op.callees[side],
                    op.callees[1 - side],
                    spent_ps[side] / PICOSECONDS,
                    spent_ps[1 - side] / PICOSECONDS,
                )
            )
        first = 1 + side * len(self.program.functions[op.callee].params)
        count = len(self.program.functions[op.callees[side]].params)
        return numbers[side], [*ins[first : first + count], *conditions, ins[0]]

    def _add(
        self, name: str, params: int, values: int, steps: list[SimulatedStep], results: list[int]
    ) -> int:
        into = self.into
        work_ps, tasks, closed = 0, 0, True
        for step in steps:
            if step.callee >= 0:
                callee = into.functions[step.callee]
                work_ps, tasks = work_ps + callee.work_ps, tasks + callee.tasks
                closed = closed and callee.number >= 0
            else:
                row = into.rows[step.row]
                work_ps += row.duration_ps if row.op.kind != SLOWDOWN else 0
                tasks += 1
                closed = closed and not into.meets(row)
        number = -1
        if closed:
            table = into.table
            number = len(table.functions) // 4
            table.functions += [params, values, len(steps), len(results)]
            for step in steps:
                callee_number = into.functions[step.callee].number if step.callee >= 0 else -1
                head = _CALL if step.callee >= 0 else self._cost(into.rows[step.row])
                table.ops += [*head, callee_number, len(step.ins), len(step.outs)]
                table.ins += step.ins
                table.outs += step.outs
            table.results += results
        into.functions.append(
            LoweredFunction(name, params, values, steps, results, number, work_ps, tasks)
        )
        return len(into.functions) - 1

    def _cost(self, row: OpRow) -> tuple[int, int, int, int]:
        """Return the stream, flags, duration and time of the host."""
        stream = COMPUTE_PORT if row.stream == COMPUTE else COMM_PORT
        return stream, flags_of(row, self.into.blocking), row.duration_ps, row.issue_ps
