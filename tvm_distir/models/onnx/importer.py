# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import a resolved skeleton through TVM's ONNX importer."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import ir, relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from tvm_distir.core.ir.attributes import FRONTEND_ATTR, NUM_INPUT_ATTR, PARAM_NAMES_ATTR
from tvm_distir.core.rewriting import check_sizes
from tvm_distir.models.common.foreign_steps import noted_step
from tvm_distir.models.common.quiet import (
    IMPORT_ERRORS,
    drop_half_built,
    muted_stderr,
    reason,
    warnings_ignored,
)
from tvm_distir.support import ModelError

from .batch import node_location
from .converters import CONVERTERS
from .input_shapes import static_shapes
from .name_checks import check_names
from .node_call import PREFIX, NodeCall
from .onnx_file import check_complete, opset_version, read_model
from .resolve import resolve
from .scopes import name_weights, variable_name
from .skeleton import Skeleton, strip_weights
from .support import check_inputs

OLDEST_IR = 3


def from_onnx(
    source: str | Path | onnx.ModelProto,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
) -> ir.IRModule:
    """Import an ONNX model; its weights become parameters of ``main`` and take no memory.

    ``main`` takes the data inputs (attribute ``num_input`` says how many), then the weights,
    under the names of the file (attribute ``dist.param_names``). `load_weights` reads the values.

    Parameters
    ----------
    source : str, Path or ModelProto
        The model; external weight files are not opened.
    batch : int, optional
        The new size of dim 0 of every data input; constants that pin the old size are rewritten.
    dims : mapping of str to int, optional
        The sizes of the symbolic dims of the inputs, by name; ``INPUT.INDEX`` for a dim without a
        name.

    Raises
    ------
    ModelError
        DIST0301, DIST0303 the file; DIST0310 to DIST0314, DIST0316, DIST0317 the model.
    """
    if isinstance(source, onnx.ModelProto):
        model, path, location, folder = source, "", source.graph.name or "model", ""
    else:
        path = str(Path(source).resolve())
        model, location, folder = read_model(source), str(source), str(Path(source).parent)
    check_complete(model, location)
    _check_batch(batch, location)
    check_sizes(dims or {}, location)
    if model.ir_version < OLDEST_IR:
        problem = f"the model's IR version is {model.ir_version}"
        remedy = f"Convert it to IR version {OLDEST_IR} or later."
        raise ModelError("DIST0310", problem, location=location, remedy=remedy)
    check_names(model.graph, location)
    check_inputs(model.graph, location)
    skeleton = strip_weights(model, folder)
    name_weights(skeleton)
    old, new = static_shapes(skeleton.model, skeleton.data, dims or {}, batch, location)
    skeleton.model = resolve(skeleton.model, old, new)
    mod = _import(skeleton, location)
    names = [*skeleton.data, *skeleton.weights]
    main = mod["main"].with_attrs({NUM_INPUT_ATTR: len(skeleton.data), PARAM_NAMES_ATTR: names})
    mod.update_func(mod.get_global_var("main"), main)
    about = {"format": "onnx", "source": path, "batch": batch or 0}
    return noted_step(_fold_constants(mod.with_attr(FRONTEND_ATTR, about), location))


def _check_batch(batch: int | None, location: str) -> None:
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        problem = f"batch={batch!r} is not a size"
        raise ModelError("DIST0314", problem, location=location, remedy="Give a positive integer.")


class _Refused(BaseException):
    """The exception of a conversion, which TVM would print if it were an ``Exception``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """Subclass of TVM's importer that records the current node and names its results.

    Parameters
    ----------
    names : mapping of str to str
        The names of results by the names of nodes; results of other nodes keep the name that TVM
        gives.
    """

    node = ""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__({}, "float32", keep_params_in_input=False, sanitize=False)
        self.names = names

    def imported(self, model: onnx.ModelProto) -> ir.IRModule:
        """Return the module of a model; raises what a conversion raises."""
        try:
            with warnings_ignored():
                return self.from_onnx(model.graph, opset_version(model))
        except _Refused as refused:
            traceback.clear_frames(refused.__traceback__)  # they hold the builder
            raise refused.error from None

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        theirs = onnx.GraphProto()
        theirs.node.extend(n for n in graph.node if not n.op_type.startswith(PREFIX))
        super()._check_for_unsupported_ops(theirs)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        name = attrs["tvm_custom"]["name"]
        self.node = f"{name or '?'} ({op_name})"
        try:
            if op_name.startswith(PREFIX):
                result = self._converted(op_name, inputs, attrs)
            else:
                result = super()._convert_operator(op_name, inputs, attrs, opset)
        except Exception as error:
            raise _Refused(error) from None
        if name in self.names and isinstance(result, ir.Call):
            if isinstance(result.ty, relax.TensorType):
                return self.bb.emit(result, self.names[name])
        return result

    def _converted(self, op_name: str, inputs: Any, attrs: Any) -> Any:
        """Convert a node by this package's converter; the types of its results are known."""
        count = attrs["tvm_custom"]["num_outputs"]
        call = NodeCall([*inputs], attrs, count, self.bb)
        results = CONVERTERS[op_name.removeprefix(PREFIX)](call)[:count]
        if count == 1:
            return self.bb.normalize(results[0])
        return relax.Tuple([call.emit(value) for value in results])


def _import(skeleton: Skeleton, location: str) -> ir.IRModule:
    """Run TVM's importer on named nodes, and turn its errors into ModelErrors.

    The module holds ``main`` and the PrimFuncs that the importer writes for some operators.
    """
    for node in skeleton.model.graph.node:
        node.name = node.name or node.output[0]
    named = ((node.name, variable_name(node)) for node in skeleton.model.graph.node)
    importer = _Importer({node: name for node, name in named if name is not None})
    try:
        mod = importer.imported(skeleton.model)
    except tvm.error.OpNotImplemented as error:
        problem = _unsupported(skeleton.model, str(error))
        remedy = "Rewrite the model with operators that TVM imports."
        raise ModelError("DIST0311", problem, location=location, remedy=remedy) from error
    except IMPORT_ERRORS as error:
        node = importer.node
        del importer  # it holds the builder
        drop_half_built(error)
        problem = f"TVM's importer refused the node: {reason(error)}"
        remedy = "Check the operands and the operator set's version."
        raise ModelError("DIST0312", problem, location=node or location, remedy=remedy) from error
    return mod


def _unsupported(model: onnx.ModelProto, message: str) -> str:
    """Name the first node of each operator that TVM's message lists."""
    listed = {word.strip() for word in message.rsplit(":", 1)[-1].split(",")}
    first: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type in listed:
            first.setdefault(node.op_type, node_location(node))
    return f"TVM cannot import {', '.join(first.values()) or message}"


def _fold_constants(mod: ir.IRModule, location: str) -> ir.IRModule:
    """Fold values that depend only on constants, and remove unread values."""
    passes = tvm.transform.Sequential(
        [relax.transform.FoldConstant(), relax.transform.DeadCodeElimination(["main"])]
    )
    try:
        with muted_stderr():
            return passes(mod)
    except IMPORT_ERRORS as error:  # folding asks every call for its kernel
        problem = f"TVM has no kernel for {_without_kernel(mod)}: {reason(error)}"
        remedy = "Rewrite the node that is imported as this call."
        raise ModelError("DIST0312", problem, location=location, remedy=remedy) from error


def _without_kernel(mod: ir.IRModule) -> str:
    """Return the first call of ``main`` that TVM cannot legalize."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            binding_block = relax.BindingBlock([binding])
            params = list(relax.analysis.free_vars(binding.value))
            body = relax.SeqExpr([binding_block], binding.var)
            fn = relax.Function(params, body, binding.var.ty).with_attr("global_symbol", "main")
            functions = {gv: f for gv, f in mod.functions.items() if str(gv.name_hint) != "main"}
            try:
                with muted_stderr():
                    relax.transform.LegalizeOps()(ir.IRModule({**functions, "main": fn}))
            except IMPORT_ERRORS:
                return str(binding.value).splitlines()[-1].strip()
    return "a call"
