# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recover weight names from the metadata that PyTorch's exporter leaves on nodes.

It folds the transpose of a linear layer into the stored values, which are called ``val_105``
then. The node that reads them names its module (``pkg.torch.onnx.name_scopes``) and what it
was made of (``pkg.torch.onnx.fx_node``):

Before::

    y = MatMul(x, val_105)                     # val_105: (in, out)

After::

    val_105 = Transpose(layers.0.mlp.up_proj.weight)     # (out, in), as PyTorch has it
    y = MatMul(x, val_105)
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import onnx
from onnx import helper

from .protos import refill
from .skeleton import FileWeight, Skeleton

_SCOPES = "pkg.torch.onnx.name_scopes"
_NODE = "pkg.torch.onnx.fx_node"
_REFERENCE = re.compile(r"%[pbc]_(\w+)")
_UNNAMED = re.compile(r"[A-Za-z_]+_\d+")
_TRANSPOSED = "aten.linear."


def scopes_of(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the modules around a node, outermost first, and its operation, if known."""
    text = _metadata(node, _SCOPES)
    try:
        scopes = ast.literal_eval(text) if text else ()
    except (SyntaxError, ValueError):
        return ()
    good = isinstance(scopes, (list, tuple)) and all(isinstance(scope, str) for scope in scopes)
    return tuple(scopes) if good else ()


def variable_name(node: onnx.NodeProto) -> str | None:
    """Name a node's result, such as ``layers_0_mlp_up_proj_linear``, or None without a scope."""
    scopes = scopes_of(node)
    if len(scopes) < 2:
        return None
    module, call = scopes[-2], re.sub(r"_\d+$", "", scopes[-1]).strip("_")
    if not node.output or node.output[0] != scopes[-1]:
        call = f"{call}_{node.op_type.lower()}"
    name = re.sub(r"\W", "_", f"{module}_{call}" if module else call)
    return name if name[:1].isalpha() or name[:1] == "_" else f"v_{name}"


def name_weights(skeleton: Skeleton) -> None:
    """Rename weights without names after the parameters they were computed from.

    Parameters
    ----------
    skeleton : Skeleton
        The skeleton, whose model and weights are changed in place.
    """
    scoped = [node for node in list(skeleton.model.graph.node) if scopes_of(node)]
    if not scoped:
        return
    names = _Names(scoped, skeleton)
    known = dict(skeleton.weights)
    named: dict[str, FileWeight] = {}
    renamed: dict[str, str] = {}
    views: dict[str, onnx.NodeProto] = {}
    for node in scoped:
        for position, old in enumerate(node.input):
            if old not in known or old in renamed or not names.is_lost(old):
                continue
            name = names.origin(node, position)
            if name is None:
                continue
            weight = known[old]
            transposed = _is_transposed(node, position, weight)
            shape = weight.shape[::-1] if transposed else weight.shape
            other = named.get(name) or known.get(name)
            if other is not None and (other.shape != shape or other.elem_type != weight.elem_type):
                continue
            if other is None:
                named[name] = replace(weight, name=name, shape=shape, transposed=transposed)
            renamed[old] = name
            if transposed:
                views[old] = helper.make_node("Transpose", [name], [old], name=old, perm=[1, 0])
                views[old].metadata_props.extend(node.metadata_props)
    if renamed:
        _rewrite(skeleton, named, renamed, views)


class _Names:
    """Parameter names in the metadata of a graph."""

    def __init__(self, scoped: list[onnx.NodeProto], skeleton: Skeleton) -> None:
        modules = {scope for node in scoped for scope in scopes_of(node)[:-1] if scope}
        self.modules = sorted(modules, key=len, reverse=True)
        self.stored = {_plain(name) for name in skeleton.weights}
        self.metadata = {
            _plain(name) for node in scoped for name in _REFERENCE.findall(_metadata(node, _NODE))
        }

    def is_lost(self, name: str) -> bool:
        """Return whether a weight's name is not that of a parameter."""
        if self.metadata:
            return _plain(name) not in self.metadata
        return _UNNAMED.fullmatch(name) is not None

    def origin(self, node: onnx.NodeProto, position: int) -> str | None:
        """Return the name of the parameter of an operand, or None if it is ambiguous."""
        references = list(dict.fromkeys(_REFERENCE.findall(_metadata(node, _NODE))))
        lost = [name for name in references if _plain(name) not in self.stored] or references
        weights = [name for name in lost if name.endswith("weight")] if len(lost) > 1 else lost
        if len(weights) == 1:
            return self._dotted(weights[0])
        if references or node.op_type not in ("MatMul", "Gemm", "Conv") or position != 1:
            return None
        module = scopes_of(node)[-2] if len(scopes_of(node)) > 1 else ""
        return f"{module}.weight" if module else None

    def _dotted(self, name: str) -> str:
        """Return the name with the dots of its longest module prefix."""
        for module in self.modules:
            if _plain(name).startswith(f"{_plain(module)}_"):
                return f"{module}.{name[len(module) + 1 :]}"
        return name


def _rewrite(
    skeleton: Skeleton,
    named: dict[str, FileWeight],
    renamed: dict[str, str],
    views: dict[str, onnx.NodeProto],
) -> None:
    """Apply the new names and the transposes to the skeleton, in the order of weights."""
    weights: dict[str, FileWeight] = {}
    for old, weight in skeleton.weights.items():
        name = renamed.get(old, old)
        weights.setdefault(name, named.get(name, weight))
    graph, transposed = skeleton.model.graph, frozenset(views)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in views:
                nodes.append(views.pop(name))
            elif name in renamed and name not in transposed:
                node.input[position] = renamed[name]
        nodes.append(node)
    data = [value for value in graph.input if value.name not in skeleton.weights]
    inputs = [helper.make_tensor_value_info(w.name, w.elem_type, w.shape) for w in weights.values()]
    refill(graph.input, [*data, *inputs])
    refill(graph.node, nodes)
    skeleton.weights = weights


def _is_transposed(node: onnx.NodeProto, position: int, weight: FileWeight) -> bool:
    """Return whether the stored values are the transpose of a linear layer's weight."""
    if node.op_type != "MatMul" or position != 1 or len(weight.shape) != 2:
        return False
    metadata = _metadata(node, _NODE)
    return _TRANSPOSED in metadata if metadata else scopes_of(node)[-1].startswith("linear")


def _metadata(node: onnx.NodeProto, key: str) -> str:
    return next((str(item.value) for item in node.metadata_props if item.key == key), "")


def _plain(name: str) -> str:
    """Return a name in lower case, as PyTorch writes parameters in graphs."""
    return re.sub(r"\W", "_", name).lower()
