# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write traced ranks as a module of level 5, with an entry function per program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from tvm import ir, relax
from tvm.relax import BlockBuilder

from tvm_distir.core.ir import AXES_ATTR, MESH_INFO, R, device_mesh, mesh_key, placement_text
from tvm_distir.core.ir.attributes import FRONTEND_ATTR, IO_ATTR, NUM_INPUT_ATTR, PARAM_NAMES_ATTR
from tvm_distir.models.common.traced import LINES_ATTR, TRACE_ATTR
from tvm_distir.support import ForkSafeLock, ModelError, update_type

from .aten_call import AtenCall, constant, dtype_name
from .graph import Translation, check_operators
from .rank_collectives import COLLECTIVES, MESSAGES, RankGroups
from .rank_programs import SharedProgram, inferred_mesh, meshes_of, programs_of, sampled_program
from .rank_trace import LINE, SCOPE, Maker, TracedRank, trace
from .signature import as_array
from .table import overload_name


class _RankTranslation(Translation):
    """Translates the graph of a rank, and notes the place in code of each value."""

    def __init__(self, builder: BlockBuilder, group: RankGroups) -> None:
        super().__init__(builder)
        self._group = group
        self.lines: dict[str, str] = {}

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return constant(as_array(value), dtype_name(value.dtype))
        return value

    def _read_nodes(self, graph: fx.Graph) -> set[fx.Node]:
        return set(graph.nodes)  # what is not read is not there, except for collectives

    def _value(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        write = COLLECTIVES.get(overload_name(node.target))
        if write is None:
            value = super()._value(node, env)
        else:
            value = write(AtenCall(node, env, self._builder), self._group)
        for leaf in value if isinstance(value, list) else [value]:
            if isinstance(leaf, relax.Var):
                text = " ".join(filter(None, (node.meta.get(LINE), node.meta.get(SCOPE))))
                self.lines.setdefault(str(leaf.name), text)
        return value


_TURN = ForkSafeLock()


def trace_ranks(
    make: Maker, ranks: int, mesh: Mapping[str, int] | None, sample: int | None
) -> ir.IRModule:
    """Trace ranks and write their programs (see :func:`.frontends.trace_ranks`)."""
    numbers = range(ranks) if sample is None else [sample]
    if ranks < 1 or numbers[0] not in range(ranks):
        problem = f"there is no rank {sample or 0} of {ranks} ranks"
        remedy = "Give a positive number of ranks, and as sample one of them, counted from 0."
        raise ModelError("DIST0364", problem, location="ranks", remedy=remedy)
    with _TURN():  # a process has a single default group
        traced = [trace(rank, ranks, make) for rank in numbers]
    groups = [group for t in traced for group in t.groups.values()]
    axes = dict(mesh) if mesh is not None else inferred_mesh(groups, ranks)
    if math.prod(axes.values()) != ranks:
        problem = f"a mesh of {math.prod(axes.values())} devices for {ranks} ranks"
        remedy = "Give sizes of axes whose product is the number of ranks."
        raise ModelError("DIST0364", problem, location="mesh", remedy=remedy)
    every = device_mesh(axes)
    if sample is not None and _has_messages(traced[0]):
        problem = "it sends or receives, so that the other ranks run other programs"
        remedy = "Trace all ranks: leave out sample."
        raise ModelError("DIST0364", problem, location=f"rank {sample}", remedy=remedy)
    programs = programs_of(traced, every) if sample is None else [sampled_program(traced[0], every)]
    return _module(programs, every, axes)


def _module(programs: Sequence[SharedProgram], mesh: Any, axes: Mapping[str, int]) -> ir.IRModule:
    inputs = _union(program.trace.inputs for program in programs)
    outputs = _union(program.trace.outputs for program in programs)
    integers = {k: v for program in programs for k, v in program.trace.integers.items()}
    used: dict[Any, tuple[Any, list[str]]] = {mesh_key(mesh): (mesh, list(axes))}
    functions: dict[ir.GlobalVar, relax.Function] = {}
    for number, program in enumerate(programs):
        name = "main" if len(programs) == 1 else f"main_mesh{number}"
        group = RankGroups(program.ranks[0], dict(meshes_of(program, mesh)))
        fn = _function(program.trace, group, name)
        for other, _ in group.axes.values():
            used.setdefault(mesh_key(other), (other, ["groups", "rank"]))
        for other in group.peers:
            used.setdefault(mesh_key(other), (other, ["rank"]))
        io = _ports(program, fn, (inputs, outputs), len(axes))
        gv = ir.GlobalVar(name)
        update_type(gv, fn.ty)
        functions[gv] = fn.with_attr(IO_ATTR, io)
    attrs: dict[str, Any] = {
        AXES_ATTR: [names for _, names in used.values()],
        FRONTEND_ATTR: {"format": "torch", "source": ""},
        TRACE_ATTR: {"inputs": inputs, "outputs": outputs, "integers": integers},
    }
    infos = {MESH_INFO: [known for known, _ in used.values()]}
    return ir.IRModule(functions, attrs=ir.make_node("ir.DictAttrs", **attrs), global_infos=infos)


def _has_messages(traced: TracedRank) -> bool:
    return any(overload_name(node.target) in MESSAGES for node in traced.module.graph.nodes)


def _union(lists: Any) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))


def _function(traced: TracedRank, group: RankGroups, name: str) -> relax.Function:
    graph = traced.module.graph
    check_operators([graph], COLLECTIVES)
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    params = []
    for node, leaf in zip(holders, traced.inputs, strict=True):
        value = node.meta["val"]
        ty = relax.TensorType([int(n) for n in value.shape], dtype_name(value.dtype))
        params.append(relax.Var(leaf, ty))
    builder = BlockBuilder()
    translation = _RankTranslation(builder, group)
    with builder.function(name, params, pure=not _has_messages(traced)):
        results = translation.run(traced.module, graph, dict(zip(holders, params, strict=True)))
        body = results[0] if len(results) == 1 else relax.Tuple(results)
        builder.emit_func_output(body)
    fn = relax.transform.Normalize()(builder.get())[name]
    return fn.with_attrs(
        {
            NUM_INPUT_ATTR: len(params),
            PARAM_NAMES_ATTR: traced.inputs,
            LINES_ATTR: translation.lines,
        }
    )


def _ports(
    program: SharedProgram, fn: relax.Function, names: tuple[list[str], list[str]], axes: int
) -> dict[str, Any]:
    """Return ``dist.io``, in which each rank holds all of its tensors."""
    traced = program.trace
    everywhere = placement_text([R] * axes)

    def port(index: int, ty: Any) -> dict[str, Any]:
        shape = [int(n) for n in ty.shape]
        return {"index": index, "shape": shape, "dtype": str(ty.dtype), "placement": everywhere}

    weights = len(traced.inputs) - traced.data
    kinds = ["weight"] * weights + ["data"] * traced.data
    inputs = [
        {"name": name, **port(names[0].index(name), param.ty), "role": kind}
        for name, param, kind in zip(traced.inputs, fn.params, kinds, strict=True)
    ]
    types = fn.ret_ty.fields if isinstance(fn.ret_ty, relax.TupleType) else [fn.ret_ty]
    outputs = [
        port(names[1].index(name), ty) for name, ty in zip(traced.outputs, types, strict=True)
    ]
    return {"mesh": 0, "devices": list(program.ranks), "inputs": inputs, "outputs": outputs}
