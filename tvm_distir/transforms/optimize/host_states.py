# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Keep the states of an optimizer in the memory of the host between steps (level 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import BindingBlock, Expr, Var

from tvm_distir.core.ir import is_private, relax_functions
from tvm_distir.core.ir.attributes import IO_ATTR, TRAINING_ATTR, training_notes
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import FETCH, STORE, Pipeline, plain_name
from tvm_distir.core.rewriting import (
    BlockWriter,
    field_of,
    let_out,
    rebound,
    substitute,
    tuple_of,
    variables,
    with_body,
    with_functions,
)
from tvm_distir.core.rewriting.native import pruned
from tvm_distir.transforms.host_copies import host_copy

from .first_gathers import updated_results


@module_pass("local")
def OffloadStates() -> Rewrite:
    """Keep the states of an optimizer, master copies included, in the host's memory.

    The states that an op, or a call of a private function, is the first to read are fetched
    together before it, and new states are stored behind the op or call that computes them, while
    others run. A device holds the states of few of these at a time; a step moves all of them once
    to the device and once back. Values are the same. The note ``host`` of ``dist.training`` has the
    names of the states.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return _offloaded


def _offloaded(mod: ir.IRModule) -> ir.IRModule:
    pipeline, functions = Pipeline.of(mod), dict(mod.functions.items())
    for gv, fn in relax_functions(mod):
        states = training_notes(fn, "states")
        if is_private(fn) or not states or IO_ATTR not in fn.attrs:
            continue
        known = {plain_name(str(state)) for names in states.values() for state in names[:]}
        numbers = [n for n, name in enumerate(_names(gv, fn, pipeline)) if name in known]
        results = updated_results(str(gv.name_hint), fn, pipeline)
        written = _HostStates(fn, numbers, {n: results[n] for n in numbers if n in results}).run()
        notes = {**dict(fn.attrs[TRAINING_ATTR].items()), "host": states}
        functions[gv] = written.with_attr(TRAINING_ATTR, notes)
    return with_functions(mod, functions)


def _names(gv: ir.GlobalVar, fn: relax.Function, pipeline: Pipeline | None) -> list[str]:
    """Return the plain names of the parameters of an entry or a stage."""
    if pipeline is None:
        return [plain_name(str(item["name"])) for item in fn.attrs[IO_ATTR]["inputs"][:]]
    notes = [note for note in pipeline.stages if note.function == gv.name_hint]
    return [plain_name(slot) for slot in notes[0].params] if notes else []


class _HostStates:
    """Rewriter of a function whose states arrive, and are returned, in the host's memory.

    Parameters
    ----------
    fn : Function
    states : list of int
        The positions of the states among its parameters.
    updated : mapping of int to int
        The positions of their new values among its results.
    """

    def __init__(self, fn: relax.Function, states: list[int], updated: Mapping[int, int]) -> None:
        self.fn = fn
        self.bindings = [b for block in fn.body.blocks for b in block.bindings]
        self.values = {b.var: b.value for b in self.bindings}
        result = self._first(fn.body.body)
        self.result: Expr = self.values.get(result, result)
        self.fetched = self._fetches([fn.params[n] for n in states])
        self.stored: dict[Any, dict[Any, int | None]] = {}
        for position in updated.values():
            self._store(self.result.fields[position])

    def run(self) -> relax.Function:
        """Return the function with its copies."""
        fn, on_device, on_host = self.fn, dict[Any, Any](), dict[Any, Any]()
        blocks = [self._block(block, on_device, on_host) for block in fn.body.blocks]
        fields = [on_host.get(self._first(f), f) for f in self.result.fields]
        blocks, result = let_out(blocks, tuple_of(fields))
        blocks, _ = pruned(blocks, result)
        return with_body(fn, fn.params, blocks, result, bool(fn.is_pure))

    def _first(self, value: Expr) -> Any:
        """Return the variable to which a value was bound first."""
        while isinstance(self.values.get(value), ir.Var):
            value = self.values[value]
        return value

    def _fetches(self, states: Sequence[Var]) -> dict[Var, list[Var]]:
        """Return the states that each binding is the first to read."""
        unread, fetched = set(states), dict[Var, list[Var]]()
        for binding in self.bindings:
            read = [v for v in dict.fromkeys(variables(binding.value)) if v in unread]
            unread.difference_update(read)
            fetched[binding.var] = read
        return fetched

    def _store(self, result: Expr) -> None:
        """Let a new state, which may be a field of what a call returns, be stored."""
        var = self._first(result)
        value = self.values.get(var)
        if isinstance(value, relax.TupleGetItem):
            self.stored.setdefault(self._first(value.tuple_value), {})[var] = int(value.index)
        elif value is not None:
            self.stored.setdefault(var, {})[var] = None

    def _block(
        self, block: BindingBlock, on_device: dict[Any, Any], on_host: dict[Any, Any]
    ) -> BindingBlock:
        """Return a block with the copies of what its bindings read and compute."""
        writer = BlockWriter(relax.BlockBuilder(), isinstance(block, relax.DataflowBlock))
        for binding in block.bindings:
            var = binding.var
            read = self.fetched[var]
            on_device.update(zip(read, _copied(writer, FETCH, read), strict=True))
            writer.bindings.append(rebound(binding, substitute(binding.value, on_device)))
            fields = self.stored.get(var, {})
            parts = [
                var if k is None else writer.add(field_of(var, k), f"{name.name}_new")
                for name, k in fields.items()
            ]
            on_host.update(zip(fields, _copied(writer, STORE, parts), strict=True))
        return writer.block()


def _copied(writer: BlockWriter, kind: str, values: Sequence[Var]) -> list[Expr]:
    """Write the copy of tensors, and return the variables of the copies."""
    if not values:
        return []
    name = f"{values[0].name}_{'fetched' if kind == FETCH else 'stored'}"
    copy = writer.emit(host_copy(kind, values), name)
    if len(values) == 1:
        return [copy]
    return [writer.add(field_of(copy, k), f"{v.name}_{kind}") for k, v in enumerate(values)]
