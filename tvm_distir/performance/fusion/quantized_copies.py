# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Store the quantized copies of operands that training steps keep in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tvm_distir.core.ops import VIEW
from tvm_distir.performance.program.parts import Function, Op, Value
from tvm_distir.performance.program.pipeline_program import PipelineProgram, Stage
from tvm_distir.performance.program.program import Program

from .dataflow import GRADIENT, Dataflow
from .passed_values import RESULT, SLOT, VALUE, PassedValues, ValueKey, ValueUse
from .profile import Profile
from .quantization import PRODUCTS, QUANTIZE, half_matrices, is_training
from .stored_weights import quantized_bytes
from .weight_kinds import Quantization


def with_quantized_copies(program: Program, profile: Profile) -> Program:
    """Let products of a training step read quantized copies, as Transformer Engine stores them.

    A kernel that quantizes an operand makes a row-wise copy, which products of the forward pass
    read, and a column-wise copy for the gradients of weights. What the forward pass saves is the
    column-wise copy where only products read the value in the backward pass, and the value itself
    otherwise. Both copies of a weight are there during the whole step, because micro-batches share
    them; those of a weight that a layer gathers are there as long as the gathered weight.

    With ``parameters`` the two copies are all that is stored of a trained weight that only
    products read: 8 bits each, the bytes of the 16-bit weight. No kernel of a micro-batch quantizes
    it, a gather sends one copy, and a kernel behind it makes the other (``fp8_param_gather`` of
    Megatron). With ``gathers`` a shard of an activation or a gradient is quantized before it is
    gathered for products alone, and transposed behind (Transformer Engine).

    Parameters
    ----------
    program : Program
        Grouped, with the products and kernels of :func:`.quantization.quantized`.
    profile : Profile
        Steps of profiles that do not quantize all operands stay, and so do programs of inference.
    """
    chosen = profile.quantization
    if chosen is None or not profile.stores_copies or not is_training(program.functions):
        return program
    return _Writer(program, chosen).run()


class _Writer:
    """Writer of a program with quantized copies.

    Parameters
    ----------
    program : Program
    chosen : Quantization
    """

    def __init__(self, program: Program, chosen: Quantization) -> None:
        self.program, self.chosen = program, chosen
        self.flows = {name: Dataflow(fn, False) for name, fn in program.functions.items()}
        self.late = {name: flow.in_backward() for name, flow in self.flows.items()}
        self.quantizers = {
            name: {op.inputs[0]: number for number, op in enumerate(fn.ops) if op.op == QUANTIZE}
            for name, fn in program.functions.items()
        }
        self.passed = PassedValues(program, self.flows, self.quantizers)
        self.stored = self._stored_weights() if chosen.parameters else set[ValueKey]()
        for name, numbers in self.quantizers.items() if self.stored else ():
            self.quantizers[name] = {v: n for v, n in numbers.items() if not self.stores(name, v)}
        weights = self.passed.weights if chosen.parameters else {}
        self.views = {group for group in weights if self._is_view(group)}
        self.narrow = {group for group in self.passed.readers if self._is_narrow(group)}
        self.cached = {group for group in self.passed.weights if self._is_quantized(group)}

    def run(self) -> Program:
        """Return the program."""
        functions = {name: _FunctionWriter(self, name).run() for name in self.program.functions}
        staged = self.program.staged
        if staged is None:
            for name in {entry.function: None for entry in self.program.entries}:
                functions[name] = self._with_cached_copies(name, functions[name])
        else:
            staged = self._with_cached_slots(staged)
        return dataclasses.replace(self.program, functions=functions, staged=staged)

    def copy(self, value: Value) -> Value:
        """Return the quantized copy of a value."""
        size = quantized_bytes(value.bytes, self.chosen.bits)
        return value._replace(dtype=self.chosen.dtype.partition("_")[0], bytes=size)

    def sized(self, value: Value, group: ValueKey) -> Value:
        """Return a value that is passed in a group with the bytes that it has there."""
        if group in self.views:
            return value._replace(bytes=0)
        return self.copy(value) if group in self.narrow else value

    def operands(self, name: str, number: int) -> list[int]:
        """Return the operands that an op reads quantized."""
        flow, op = self.flows[name], self.program.functions[name].ops[number]
        if op.kind != "compute" or op.model_op not in PRODUCTS or op.dtype != self.chosen.dtype:
            return []
        return half_matrices(flow, number)

    def is_passed_as(self, groups: set[ValueKey], name: str, value: int) -> bool:
        """Return whether a value of a function is passed to it, or returned to it, in groups."""
        value = self.flows[name].source[value]
        return self.passed.is_passed(name, value) and self.group(VALUE, name, value) in groups

    def group(self, kind: str, name: str, at: int) -> ValueKey:
        """Return the group of a place."""
        return self.passed.group((kind, name, at))

    def gathered(self, name: str, value: int) -> int | None:
        """Return what an op of a function gathers a value to, where it reads the value."""
        flow = self.flows[name]
        for number in flow.readers.get(value, ()):
            op = flow.fn.ops[number]
            if op.kind == "collective" and op.collective == "all_gather" and len(op.inputs) == 1:
                out = op.outputs[0]
                waits = (flow.fn.ops[reader] for reader in flow.readers.get(out, ()))
                return next((wait.outputs[0] for wait in waits if wait.kind == "wait"), out)
        return None

    def stores(self, name: str, value: int) -> bool:
        """Return whether a value is a weight that is stored as copies, or gathered from one."""
        return bool(self.stored) and not self.stored.isdisjoint(
            self.passed.weights_of(name, value, moved=False)
        )

    def sends_copies(self, name: str, op: Op) -> bool:
        """Return whether an op gathers quantized copies."""
        return self.gathers_copies(name, op) or (
            op.collective == "all_gather"
            and len(op.inputs) == 1
            and self.stores(name, op.inputs[0])
        )

    def gathers_copies(self, name: str, op: Op) -> bool:
        """Return whether an op gathers quantized activations or gradients for products alone."""
        if not self.chosen.gathers or op.collective != "all_gather" or len(op.inputs) != 1:
            return False
        if self.is_passed_as(self.narrow, name, op.inputs[0]):
            return True
        value, flow = self.gathered(name, op.inputs[0]), self.flows[name]
        if value not in self.quantizers[name] or value in flow.returned:
            return False
        readers = ((number, flow.fn.ops[number]) for number in flow.readers[value])
        return all(op.op == QUANTIZE or value in self.operands(name, n) for n, op in readers)

    def _stored_weights(self) -> set[ValueKey]:
        """Return the weights that products read quantized, and no other kernel reads."""
        quantized, others = set[ValueKey](), set[ValueKey]()
        for name, flow in self.flows.items():
            for value, numbers in flow.readers.items():
                weights = set(self.passed.weights_of(name, value, moved=False))
                for number in numbers if weights else ():
                    op = flow.fn.ops[number]
                    if op.op == QUANTIZE:
                        quantized |= weights
                    elif op.kind == "compute" and op.outputs:
                        others |= set() if value in self.operands(name, number) else weights
        return quantized - others

    def _is_view(self, group: ValueKey) -> bool:
        """Return whether a shard of a weight is a part of what is gathered for the whole step."""
        gathers = [
            use
            for use in self.passed.readers[group]
            if self.program.functions[use.function].ops[use.number].outputs
        ]
        return bool(gathers) and all(
            self.gathered(use.function, use.value) in self.flows[use.function].returned
            for use in gathers
        )

    def _is_narrow(self, group: ValueKey) -> bool:
        """Return whether only products of the backward pass read what is quantized before."""
        makers = self.passed.makers.get(group, [])
        return (
            group not in self.passed.fixed
            and bool(makers)
            and all(self._reads_copy(*use) for use in self.passed.readers[group])
            and all(map(self._has_copy, makers))
        )

    def _has_copy(self, use: ValueUse) -> bool:
        """Return whether a function quantizes a value, or what it gathers, before it passes it."""
        quantizers = self.quantizers[use.function]
        gathered = self.gathered(use.function, use.value)
        copied = (use.value,) if gathered is None else (use.value, gathered)
        return min(quantizers.get(value, use.number) for value in copied) < use.number

    def _reads_copy(self, name: str, number: int, value: int) -> bool:
        """Return whether an op reads the column-wise copy that another function has made.

        So does one that gathers the value for nothing but such products.
        """
        flow = self.flows[name]
        if value in self.quantizers[name] or value in flow.returned:
            return False
        if number in self.late[name] and value in self.operands(name, number):
            return True
        op = flow.fn.ops[number]
        gathers = op.kind == "wait" or op.collective == "all_gather"
        readers = [(out, flow.readers.get(out, ())) for out in op.outputs if gathers]
        return bool(readers) and all(
            numbers and all(self._reads_copy(name, reader, out) for reader in numbers)
            for out, numbers in readers
        )

    def _is_quantized(self, group: ValueKey) -> bool:
        """Return whether kernels quantize a weight of the whole step as it is."""
        return any(use.value in self.quantizers[use.function] for use in self.passed.readers[group])

    def _cached_copies(self, value: Value) -> Value:
        """Return both copies of a weight."""
        copy = self.copy(value)
        return copy._replace(name=f"{value.name} copies", bytes=2 * copy.bytes)

    def _with_cached_copies(self, name: str, fn: Function) -> Function:
        """Return the function of an entry with the copies of its weights as parameters."""
        copies = [
            self._cached_copies(fn.values[param])
            for param in fn.params
            if fn.values[param].is_weight and self.group(VALUE, name, param) in self.cached
        ]
        first = len(fn.values)
        params = (*fn.params, *range(first, first + len(copies)))
        return dataclasses.replace(fn, params=params, values=(*fn.values, *copies))

    def _with_cached_slots(self, staged: PipelineProgram) -> PipelineProgram:
        """Return the stages with slots of quantized values, and of the copies of weights."""
        stage_kinds, added = [], list[list[int]]()
        for number, stage_kind in enumerate(staged.stage_kinds):
            slots = [
                self.sized(value, self.group(SLOT, str(number), slot))
                for slot, value in enumerate(stage_kind.slots)
            ]
            copied = [
                at
                for at, slot in enumerate(stage_kind.params)
                if stage_kind.slots[slot].is_weight
                and self.group(SLOT, str(number), slot) in self.cached
            ]
            params = (*stage_kind.params, *range(len(slots), len(slots) + len(copied)))
            slots += [self._cached_copies(stage_kind.slots[stage_kind.params[at]]) for at in copied]
            stage_kinds.append(dataclasses.replace(stage_kind, slots=tuple(slots), params=params))
            added.append(copied)

        def named(stage: Stage) -> Stage:
            names = (f"{stage.names[at]}_copies" for at in added[stage.role])
            return dataclasses.replace(stage, names=(*stage.names, *names))

        stages = tuple(map(named, staged.stages))
        return dataclasses.replace(staged, stage_kinds=tuple(stage_kinds), stages=stages)


class _FunctionWriter:
    """Writer of a function whose products read copies.

    Parameters
    ----------
    writer : _Writer
    name : str
        The name of the function.
    """

    def __init__(self, writer: _Writer, name: str) -> None:
        self.writer, self.name = writer, name
        self.fn, self.flow = writer.program.functions[name], writer.flows[name]
        self.late = writer.late[name]
        self.values = list(self.fn.values)
        self.copies: dict[int, tuple[int, int]] = {}
        self.views: dict[tuple[int, int], int] = {}
        self.read: set[int] = set()
        # The devices over which values are gathered as copies.
        self.ranks: dict[int | None, int] = {}
        # What is passed on as a copy, by what it is gathered to before it is quantized.
        self.shards: dict[int, list[int]] = {}
        for key, uses in writer.passed.makers.items():
            for use in uses if key in writer.narrow else ():
                gathered = writer.gathered(name, use.value) if use.function == name else None
                if gathered is not None and use.value not in writer.quantizers[name]:
                    self.shards.setdefault(gathered, []).append(use.value)

    def run(self) -> Function:
        """Return the function."""
        fn, writer = self.fn, self.writer
        for value in self._narrow():
            self.values[value] = writer.copy(fn.values[value])
        ops: list[Op] = []
        for number, op in enumerate(fn.ops):
            operands = writer.operands(self.name, number)
            if op.op == QUANTIZE and op.inputs[0] not in writer.quantizers[self.name]:
                continue  # a weight that is stored quantized
            if op.op == QUANTIZE:
                op = self._of_shard(op)
                copies = self._quantized(op.inputs[0], 2)
                for value in self.shards.get(op.inputs[0], ()):
                    copies += self._quantized(value, 1)
                op = op._replace(outputs=copies)
            elif operands:
                ops += self._gathered(number, operands)
                before = [self._operand(number, value) for value in op.inputs]
                ops += [each for views, _ in before for each in views]
                op = op._replace(inputs=tuple(v for _, inputs in before for v in inputs))
                self.read.update(operands)
            elif writer.sends_copies(self.name, op):
                self.ranks[writer.gathered(self.name, op.inputs[0])] = op.group_size
                payload = quantized_bytes(op.payload_bytes, writer.chosen.bits)
                op = op._replace(payload_bytes=payload)
            elif op.kind == "call":
                pairs = zip(op.inputs, writer.program.functions[op.callee].params, strict=True)
                inputs = (self._passed(v, (VALUE, op.callee, param)) for v, param in pairs)
                op = op._replace(inputs=tuple(inputs))
            ops.append(op)
            ops += [self._transposed(v) for v in op.outputs if v in self.ranks]
        results = tuple(self._passed(v, (RESULT, self.name, k)) for k, v in enumerate(fn.results))
        return dataclasses.replace(fn, ops=tuple(ops), results=results, values=tuple(self.values))

    def _narrow(self) -> set[int]:
        """Return the values that are passed to the function as copies, and what it gathers them to.

        The bytes that collectives send remain those of 16 bits without ``gathers``.
        """
        narrow = {
            value
            for value in range(len(self.fn.values))
            if self.writer.is_passed_as(self.writer.narrow, self.name, value)
        }
        for op in self.fn.ops:
            moves = op.kind in ("collective", "wait", "view") and not narrow.isdisjoint(op.inputs)
            if moves or self.writer.gathers_copies(self.name, op):
                narrow.update(op.outputs)
        return narrow

    def _of_shard(self, op: Op) -> Op:
        """Return a kernel that quantizes; where its operand is gathered quantized, only a shard."""
        ranks, known = self.ranks.get(op.inputs[0], 1), self.fn.values[op.inputs[0]]
        if ranks == 1:
            return op
        copy = self.writer.copy(known).bytes
        return op._replace(
            bytes_read=self.writer.chosen.passes * known.bytes // ranks, bytes_written=copy // ranks
        )

    def _transposed(self, value: int) -> Op:
        """Return the kernel that makes the column-wise copy of what was gathered as a copy."""
        known = self.fn.values[value]
        size, name = self.writer.copy(known).bytes, f"{known.name}_transposed"
        return Op(
            name, "compute", QUANTIZE, (value,), (), 0, size, size, True, "memory", known.dtype
        )

    def _quantized(self, value: int, count: int) -> tuple[int, ...]:
        """Return new copies of a value; those of a weight of the whole step are parameters."""
        if self.writer.is_passed_as(self.writer.cached, self.name, value):
            return ()
        first = len(self.values)
        copy = self.writer.copy(self.fn.values[value])
        self.values += [copy._replace(role="activation")] * count
        self.copies[value] = first, first + count - 1
        return tuple(range(first, first + count))

    def _gathered(self, number: int, operands: list[int]) -> Iterator[Op]:
        """Yield kernels that make the copies of gathered weights for the backward pass.

        Their time is not part of the profile: they take none.
        """
        for value in operands if number in self.late else ():
            is_weight = self.writer.passed.is_weight(self.name, value)
            if value not in self.copies and is_weight and not self.writer.stores(self.name, value):
                copies = self._quantized(value, 1)
                if copies:
                    name = f"{self.fn.values[value].name}_quantized"
                    yield Op(name, "compute", QUANTIZE, (value,), copies, kernel_class=VIEW)

    def _operand(self, number: int, value: int) -> tuple[list[Op], tuple[int, ...]]:
        """Return what a product reads in place of an operand, and the views that it needs.

        A gathered weight is there as long as its copy.
        """
        source = self.flow.source[value]
        if source not in self.copies:
            return [], (value,)
        known = self.fn.values[value]
        copy = self.copies[source][self._is_column_wise(number, source)]
        if self.writer.passed.is_weight(self.name, source):
            return [], (value, copy)
        if known.shape == self.values[copy].shape:
            return [], (copy,)
        views = []
        if (copy, value) not in self.views:
            self.views[copy, value] = len(self.values)
            self.values.append(self.writer.copy(known))
            views = [Op(known.name, "view", "relax.reshape", (copy,), (len(self.values) - 1,))]
        return views, (self.views[copy, value],)

    def _is_column_wise(self, number: int, value: int) -> bool:
        """Return whether a product reads the column-wise copy.

        In the backward pass it is that of values of the forward pass. The gradient of an output is
        read row-wise by the product that comes first, and column-wise by the other.
        """
        if number not in self.late:
            return False
        is_gradient = (
            GRADIENT.match(self.fn.values[value].name)
            if value in self.fn.params
            else self.flow.maker.get(value) in self.late
        )
        return not is_gradient or value in self.read

    def _passed(self, value: int, key: ValueKey) -> int:
        """Return what is passed to a place in place of a value."""
        source = self.flow.source[value]
        narrow = self.writer.passed.group(key) in self.writer.narrow
        return self.copies[source][1] if narrow and source in self.copies else value
