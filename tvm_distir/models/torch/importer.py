# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import exported programs: decompose as far as needed, then translate to ``main``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec
from tvm import ir, relax, transform
from tvm.relax import BlockBuilder, Expr

from tvm_distir.core.ir.attributes import FRONTEND_ATTR, NUM_INPUT_ATTR, PARAM_NAMES_ATTR
from tvm_distir.models.common.foreign_steps import noted_step
from tvm_distir.models.common.quiet import drop_half_built, reason, warnings_ignored
from tvm_distir.support import ModelError

from .archive import read_archive
from .aten_call import Absent
from .graph import Translation, check_operators, is_region
from .signature import Inputs, read_inputs, wanted_outputs
from .table import CONVERTERS, DECOMPOSED, NOTES, is_translated, overload_name

OUTPUTS = ("user", "all")


def from_exported_program(
    source: Any,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    outputs: str = "user",
) -> ir.IRModule:
    """Import a program of ``torch.export`` (see :func:`.model.from_exported_program`)."""
    if isinstance(source, ExportedProgram):
        program, location = source, "program"
    else:
        program, location = read_archive(source), str(source)
    if outputs not in OUTPUTS:
        problem = f'"{outputs}" is not a choice of outputs'
        remedy = f"Give {' or '.join(OUTPUTS)}."
        raise ModelError("DIST0362", problem, location=location, remedy=remedy)
    program = _prepared(program, location)
    check_operators(_graphs(program.graph_module))
    inputs = read_inputs(program, batch, dims or {}, location)
    try:
        mod = _without_aliases(program, inputs, outputs)
    except ModelError as error:
        drop_half_built(error)
        raise
    return mod.with_attr(FRONTEND_ATTR, {"format": "torch", "source": ""})


def _graphs(owner: Any) -> Iterator[fx.Graph]:
    """Return the graph of a torch.fx module, and those of its regions."""
    yield owner.graph
    for node in owner.graph.nodes:
        if node.op == "call_function" and is_region(node):
            for arg in node.args:
                if isinstance(arg, fx.Node) and arg.op == "get_attr":
                    yield from _graphs(getattr(owner, str(arg.target)))


def _prepared(program: ExportedProgram, location: str) -> ExportedProgram:
    """Return the program with unsupported operators decomposed by torch.

    That runs the model again without values, which takes longer than the whole import: programs
    that need none of it, and write into no tensor, are left as they are.
    """
    targets = [
        node.target
        for graph in _graphs(program.graph_module)
        for node in graph.nodes
        if node.op == "call_function" and hasattr(node.target, "_schema")
    ]
    known = (is_translated(t) or overload_name(t) in NOTES for t in targets)
    if all(known) and not any(t._schema.is_mutable for t in targets):
        return program
    table = torch.export.default_decompositions()
    further = [getattr(torch.ops.aten, name) for name in DECOMPOSED]
    table.update(torch._decomp.get_decompositions(further))
    for name in CONVERTERS:
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is not None and hasattr(packet, overload):
            table.pop(getattr(packet, overload), None)
    try:
        with warnings_ignored():
            return program.run_decompositions(table)
    except Exception as error:  # torch runs the whole model
        problem = f"torch cannot decompose the program: {reason(error)}"
        remedy = "Check the output of program.run_decompositions()."
        raise ModelError("DIST0361", problem, location=location, remedy=remedy) from error


def _without_aliases(program: ExportedProgram, inputs: Inputs, outputs: str) -> ir.IRModule:
    """Return the module, without variables that alias constants or other variables."""
    output_names = wanted_outputs(program, outputs)
    named = [*inputs.data, *inputs.weights]
    builder = BlockBuilder()
    with builder.function("main", [var for _, var in named]):
        with builder.dataflow():
            module = program.graph_module
            results = Translation(builder, inputs.batch).run(module, module.graph, dict(inputs.env))
            values = [_result(results, index, spec) for index, spec in output_names]
            result = builder.emit_output(values[0] if len(values) == 1 else relax.Tuple(values))
        builder.emit_func_output(result)
    passes = transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(["main"]),
        ]
    )
    mod = passes(builder.get())
    main = mod["main"].with_attrs(
        {NUM_INPUT_ATTR: len(inputs.data), PARAM_NAMES_ATTR: [name for name, _ in named]}
    )
    mod.update_func(mod.get_global_var("main"), main)
    gradients = {
        str(spec.target): i
        for i, (_, spec) in enumerate(output_names)
        if spec.kind is OutputKind.GRADIENT_TO_PARAMETER
    }
    return noted_step(mod, gradients)


def _result(results: list[Any], index: int, spec: OutputSpec) -> Any:
    value = results[index]
    if isinstance(value, Absent) or not isinstance(value, Expr):
        problem = f"result {index} is not computed"
        remedy = "Remove it from the outputs of the model."
        raise ModelError("DIST0361", problem, location=str(spec.arg.name), remedy=remedy)
    return value
