# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import StableHLO modules: parse, check, and translate function by function."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tvm import ir, relax, transform

from tvm_distir.core.ir.attributes import FRONTEND_ATTR
from tvm_distir.models.common.foreign_steps import noted_step
from tvm_distir.models.common.quiet import drop_half_built
from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.mlir.parser import parse_module
from tvm_distir.models.mlir.tree import Module, Operation, Symbol, operations_of
from tvm_distir.support import ModelError

from .argument_names import ArgumentNames
from .composites import COMPOSITE, is_known
from .converters import ANNOTATIONS, CALLS, CONVERTERS, MANUAL, RETURNS, SHARDING_CALL
from .functions import Functions
from .local_collectives import MOVES
from .refinement import refined
from .shardings import Shardings, sharding_of
from .source import read_source

ARGUMENTS = "arguments"
"""Key of ``dist.frontend``: the names of the arguments in the order of the text."""
_KNOWN = {*CONVERTERS, *CALLS, *RETURNS, *ANNOTATIONS, *MOVES, MANUAL}


def from_stablehlo(
    source: Any,
    *,
    data: Collection[str] | None = None,
    inline: int = 8,
    loops: int | None = None,
    shardings: bool = True,
    opaque: bool = False,
    dims: Mapping[str, int] | None = None,
) -> ir.IRModule:
    """Import a module of StableHLO (see :func:`.hlo.from_stablehlo`)."""
    text, location = read_source(source)
    text = refined(text, dims or {}, location)
    module = parse_module(text, location)
    _check_operations(module, location, opaque)
    try:
        annotations = Shardings(module, _texts(module, location) if shardings else [], text)
    except Unsupported as error:
        remedy = "Import it with shardings=False."
        raise ModelError("DIST0372", str(error), location=location, remedy=remedy) from None
    functions = Functions(module, location, inline, annotations, shardings, loops)
    if not functions.public:
        problem = "the module has no public function"
        remedy = "Export a function with jax.export."
        raise ModelError("DIST0370", problem, location=location, remedy=remedy)
    names = ArgumentNames(module.locations, data, location)
    try:
        mod = functions.written(names)
    except ModelError as error:
        drop_half_built(error)
        raise
    passes = [
        relax.transform.Normalize(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(functions.public),
    ]
    if functions.branches:
        passes.append(relax.transform.ConvertToDataflow(1))
    mod = transform.Sequential(passes)(mod)
    mod = noted_step(annotations.declare(mod))
    about = {"format": "stablehlo", "source": ""}  # no weights in it
    order = names.of(functions.by_name[functions.public[0]]).titles
    return mod.with_attr(FRONTEND_ATTR, {**about, ARGUMENTS: order})


_APPLIED = (
    "stablehlo.all_reduce",
    "stablehlo.reduce",
    "stablehlo.reduce_scatter",
    "stablehlo.reduce_window",
    "stablehlo.scatter",
    "stablehlo.select_and_scatter",
    "stablehlo.sort",
)
"""Operations whose regions are recognised, not translated."""


def _operations(module: Module) -> Iterator[Operation]:
    unread = _decompositions(module)
    for operation in module.operations:
        if operation.name == "func.func":
            if operation.attributes.get("sym_name") not in unread:
                yield from operations_of(operation.regions[0].operations, _APPLIED)
        elif operation.name != "sdy.mesh":
            yield operation


def _decompositions(module: Module) -> set[str]:
    """Return the functions that only decompose composites of known ops."""
    known: set[str] = set()
    others: set[str] = set()
    for function in (op for op in module.operations if op.name == "func.func"):
        for operation in operations_of(function.regions[0].operations, _APPLIED):
            key = "decomposition" if operation.name == COMPOSITE else "callee"
            symbol = operation.attributes.get(key)
            if isinstance(symbol, Symbol):
                (known if is_known(operation) else others).add(symbol.name)
    return known - others


def _check_operations(module: Module, location: str, opaque: bool) -> None:
    """Reject unsupported operations, each with its first occurrence (DIST0371)."""
    first: dict[str, int] = {}
    remedy = "Write the model with other operations."
    for operation in _operations(module):
        name = operation.name
        if name == "stablehlo.custom_call":
            target = str(operation.attributes.get("call_target_name"))
            if target == SHARDING_CALL or (opaque and operation.result_types):
                continue
            remedy = "Write the model with other operations, or import it with opaque=True."
            name = f"stablehlo.custom_call @{target}"
        elif name in _KNOWN:
            continue
        first.setdefault(name, operation.line)
    if first:
        name, line = next(iter(first.items()))
        problem = f"the importer does not support {', '.join(first)}"
        raise ModelError("DIST0371", problem, location=f"{location}:{line} ({name})", remedy=remedy)


def _texts(module: Module, location: str) -> list[str]:
    """Return all GSPMD shardings in a module."""
    texts: list[Any] = []
    for function in (op for op in module.operations if op.name == "func.func"):
        for argument in function.regions[0].arguments:
            texts.append(sharding_of(argument.attributes, location))
        for notes in function.attributes.get("res_attrs") or []:
            texts.append(sharding_of(notes, location))
    for operation in _operations(module):
        if operation.name == "stablehlo.custom_call":
            texts.append(sharding_of(operation.attributes, location))
    return [sharding for sharding in texts if isinstance(sharding, str)]
