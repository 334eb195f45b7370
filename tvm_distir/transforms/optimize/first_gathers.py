# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gather updated weights at the beginning of the next step (level 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax import BindingBlock, Expr, Var
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    R,
    is_private,
    mesh_key,
    meshes,
    parse_placement,
    placement_text,
    relax_functions,
)
from tvm_distir.core.ir.attributes import IO_ATTR, training_notes
from tvm_distir.core.ir.operators import call_axes, collective_op, dist_op_name
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import Pipeline, plain_name
from tvm_distir.core.rewriting import (
    BlockWriter,
    let_out,
    make_var,
    rebuild,
    substitute,
    tuple_of,
    variables,
    with_body,
    with_functions,
)
from tvm_distir.core.rewriting.native import pruned


@module_pass("local")
def GatherAtStart() -> Rewrite:
    """Keep updated weights as shards between steps, and gather them where a step begins.

    With ``zero:stage=1`` each device updates its shard of a weight, and gathers the whole weight at
    the end of the step, where little is left to overlap with. Here the step returns the shard and
    the next one gathers it, in front of its first forward pass, as a distributed optimizer does
    that overlaps the gather with it (``overlap_param_gather`` of Megatron-LM). The step sends as
    much and holds the shard besides the whole weight. Values are the same; ``dist.io`` says that
    the weight is sharded along the axes of the gather.

    Weights whose last op is not a gather, or that another axis shards along the same dim, stay as
    they are.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return _gathered_first


def _gathered_first(mod: ir.IRModule) -> ir.IRModule:
    pipeline = Pipeline.of(mod)
    if pipeline is not None and pipeline.schedule.stash:
        return mod
    functions = dict(mod.functions.items())
    for gv, fn in relax_functions(mod):
        if not is_private(fn) and fn.attrs and IO_ATTR in fn.attrs:
            pairs = updated_results(str(gv.name_hint), fn, pipeline)
            home = meshes(mod)[int(fn.attrs[IO_ATTR]["mesh"])]
            functions[gv] = _FirstGathers(fn, pairs, home).run() if pairs else fn
    return with_functions(mod, functions)


def updated_results(name: str, fn: relax.Function, pipeline: Pipeline | None) -> dict[int, int]:
    """Return the position of the new value of each updated parameter, by the parameter's."""
    names = {plain_name(updated): updated for updated in training_notes(fn, "updated")}
    io = fn.attrs[IO_ATTR]
    stated = {int(v): plain_name(str(k)) for k, v in training_notes(fn, "places").items()}
    name_of = stated or dict(enumerate(names, 1))
    if pipeline is not None:
        note = next((note for note in pipeline.stages if note.function == name), None)
        if note is None:
            return {}
        known = {slot: number for number, slot in enumerate(note.results)}
        return {
            number: known[slot]
            for number, slot in enumerate(note.params)
            if slot in known and plain_name(slot) in names
        }
    results = {
        name_of.get(int(item["index"]), ""): number for number, item in enumerate(io["outputs"][:])
    }
    params = [plain_name(str(item["name"])) for item in io["inputs"][:]]
    return {n: results[param] for n, param in enumerate(params) if param in results}


class _FirstGathers:
    """Rewriter of a function that returns shards and begins with their gathers.

    Parameters
    ----------
    fn : Function
    updated : mapping of int to int
        The position of the new value of each updated parameter, by the parameter's.
    home : DeviceMesh
        The mesh of the function. Weights on other meshes, or other views of it, stay.
    """

    def __init__(self, fn: relax.Function, updated: Mapping[int, int], home: DeviceMesh) -> None:
        self.fn, self.updated, self.home = fn, updated, home
        self.bindings = [b for block in fn.body.blocks for b in block.bindings]
        self.values = {b.var: b.value for b in self.bindings}
        io = fn.attrs[IO_ATTR]
        self.inputs = [dict(item.items()) for item in io["inputs"][:]]
        self.outputs = [dict(item.items()) for item in io["outputs"][:]]

    def run(self) -> relax.Function:
        """Return the function, or the given function where no weight is gathered last."""
        fn, result = self.fn, self.fn.body.body
        if not isinstance(result, relax.Tuple):
            return fn
        params, fields = list(fn.params), list(result.fields)
        used = {v for value in self.values.values() for v in variables(value)}
        counts = Counter(fields)
        gathers: dict[Var, tuple[Var, ir.Call]] = {}
        for number, position in self.updated.items():
            var = fields[position]
            value = self.values.get(var)
            if value is None or collective_op(value) != "all_gather":
                continue
            if var in used or counts[var] > 1:
                continue
            placement = self._sharded(number, position, value)
            if placement is None:
                continue
            shard = make_var(str(params[number].name), value.args[0].ty, False)
            gathers[params[number]] = shard, value
            params[number], fields[position] = shard, value.args[0]
            self.inputs[number]["placement"] = placement
            self.outputs[position]["placement"] = placement
        if not gathers:
            return fn
        first, env = BlockWriter(relax.BlockBuilder(), False), dict[Any, Any]()
        for param, (shard, call) in gathers.items():
            gather = rebuild(call, call.op, [shard], call.ty)
            env[param] = first.add(gather, f"{param.name}_gathered")
        blocks = [first.block(), *(self._block(block, gathers, env) for block in fn.body.blocks)]
        fields = [substitute(field, env) for field in fields]
        blocks, new_result = let_out(blocks, tuple_of(fields))
        blocks, _ = pruned(blocks, new_result)
        io = {**dict(fn.attrs[IO_ATTR].items()), "inputs": self.inputs, "outputs": self.outputs}
        return with_body(fn, params, blocks, new_result, bool(fn.is_pure)).with_attr(IO_ATTR, io)

    def _sharded(self, number: int, position: int, gather: ir.Call) -> str | None:
        """Return the placement of the shards of a weight, None where there is no text for it."""
        ports = self.inputs[number], self.outputs[position]
        other = any("mesh" in port for port in ports)
        if other or mesh_key(gather.attrs["device_mesh"]) != mesh_key(self.home):
            return None
        read, written = (parse_placement(str(port["placement"])) for port in ports)
        axes, dim = call_axes(gather), int(gather.attrs["dim"])
        if read != written or dim in read or any(read[axis] != R for axis in axes):
            return None
        return placement_text([dim if k in axes else label for k, label in enumerate(read)])

    def _block(
        self, block: BindingBlock, gathers: Mapping[Var, tuple[Any, ir.Call]], env: dict[Var, Expr]
    ) -> BindingBlock:
        """Rewrite a block: what sliced a whole weight to the shard reads the shard."""
        writer = BlockWriter(relax.BlockBuilder(), isinstance(block, relax.DataflowBlock))
        for binding in block.bindings:
            var, value = binding.var, binding.value
            if dist_op_name(value) == "local_slice" and value.args[0] in gathers:
                shard, call = gathers[value.args[0]]
                same = call_axes(value) == call_axes(call)
                if same and int(value.attrs["dim"]) == int(call.attrs["dim"]):
                    env[var] = shard
                    continue
            writer.bind(var, substitute(value, env))
        return writer.block()
