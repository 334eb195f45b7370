# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Expand nodes of ONNX Runtime's training graphs that need more than their operands' values.

These are operators whose results are known from shapes, that read sequences of tensors, that write
in place, or whose operands are those of another node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from tvm_distir.support import ModelError

from .attention_nodes import MICROSOFT
from .batch import Seen, node_location
from .node_writer import Nodes, NodeWriter
from .protos import attribute_of, attributes_of, constant_node, copied
from .update_nodes import ADAM_STEP, SGD_STEP

Expansion = Callable[[onnx.NodeProto, Seen, int], Nodes | None]


def _refusal(node: onnx.NodeProto, problem: str, remedy: str) -> ModelError:
    return ModelError("DIST0312", problem, location=node_location(node), remedy=remedy)


def _broadcast_axes(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Compute the dims along which either of two shapes is broadcast, last to first."""
    known = [seen.values.get(name) for name in node.input]
    shapes = [[int(n) for n in shape] for shape in known if shape is not None]
    if len(shapes) < 2:
        return None
    rank = max(map(len, shapes))
    wide = [[0] * (rank - len(shape)) + shape for shape in shapes]  # 0: no such dim
    nodes = []
    for name, sizes, other in zip(node.output, wide, wide[::-1], strict=False):
        axes = [d for d in range(rank) if sizes[d] == 0 or (sizes[d] == 1 and other[d] > 1)]
        if name:
            nodes.append(constant_node(name, axes[::-1], "int64"))
    return nodes


def _concatenated(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Expand a concatenation that gives the sizes of its operands along the axis, too."""
    axis = int(attribute_of(node, "axis", 0))
    shapes = [seen.shape(name) for name in node.input]
    if any(shape is None for shape in shapes):
        return None
    nodes = NodeWriter(node).finish("Concat", node.input, axis=axis)
    if len(node.output) > 1 and node.output[1]:
        sizes = [shape[axis] for shape in shapes if shape is not None]
        nodes.append(constant_node(node.output[1], sizes, "int64"))
    return nodes


def _max_pool_gradient(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Read the operand and the result of the pool that gave the indices."""
    if len(node.input) != 2:
        return None
    pool = seen.makers.get(node.input[1])
    if pool is None or pool.op_type != "MaxPool":
        problem = f'"{node.input[1]}" is no result of a MaxPool of the graph'
        raise _refusal(node, problem, "Read the indices of the MaxPool itself.")
    copy = copied(node)
    copy.input[:] = [node.input[0], pool.input[0], pool.output[0]]
    copy.attribute.extend(a for a in pool.attribute if a.name != "storage_order")
    return [copy]


def _max_pool(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Drop the indices, which only gradients of the pool may read."""
    if len(node.output) < 2:
        return None
    others = seen.readers.get(node.output[1], set()) - {"MaxPoolGrad"}
    if others:
        problem = f"TVM's importer has no indices, which {min(others)} reads"
        raise _refusal(node, problem, "Read the maxima only.")
    copy = copied(node)
    del copy.output[1:]
    seen.makers[node.output[1]] = node
    seen.types[node.output[1]] = onnx.TypeProto()
    return [copy]


def _average_pool_gradient(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Add the shape of the result, which the graph states for each of its values."""
    if any(a.name == "shape" for a in node.attribute):
        return None
    pooled, stated = seen.shape(node.input[0]), seen.stated.get(node.output[0])
    if pooled is None or stated is None or len(stated) != len(pooled):
        problem = f'the graph does not state the shape of "{node.output[0]}"'
        raise _refusal(node, problem, "Keep the value_info of the graph.")
    copy = copied(node)
    copy.attribute.append(helper.make_attribute("shape", [*pooled[:2], *stated[2:]]))
    return [copy]


def _elements(node: onnx.NodeProto, name: str, seen: Seen) -> Sequence[str]:
    """Return the tensors of a sequence."""
    maker = seen.makers.get(name)
    if maker is None or maker.op_type != "SequenceConstruct":
        problem = f'the sequence "{name}" is not constructed in the graph'
        raise _refusal(node, problem, "Read a sequence that a SequenceConstruct makes.")
    return list(maker.input)


def _element(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Return the tensor at a known position of a sequence."""
    maker, position = seen.makers.get(node.input[0]), seen.values.get(node.input[1])
    if maker is None or maker.op_type != "SequenceConstruct" or position is None:
        return None
    count = len(maker.input)
    if not -count <= int(position) < count:
        problem = f"position {int(position)} is not in a sequence of {count} tensors"
        raise _refusal(node, problem, "Read a position of the sequence.")
    return NodeWriter(node).finish("Identity", [maker.input[int(position)]])


def _note_update(node: onnx.NodeProto, seen: Seen, old: str, new: str) -> None:
    """Note the new value of what a node writes in place, as no other node may."""
    if old in seen.updated:
        problem = f'"{old}" is written in place by another node, too'
        raise _refusal(node, problem, "Write it by one node of the graph.")
    seen.updated[old] = new


def _updates(step: str, firsts: Sequence[int], lead: int) -> Expansion:
    """Return the expansion of an optimizer of sequences.

    Parameters
    ----------
    step : str
        The operator that updates a single weight.
    firsts : sequence of int
        The operands that its results replace, by number.
    lead : int
        The number of operands before the sequences.
    """

    def expand(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes:
        last = max(firsts[-1], lead + 1) + 1
        groups = [_elements(node, name, seen) for name in node.input[lead:last]]
        lengths = [len(group) for group in groups]
        if len(set(lengths)) > 1:
            problem = f"its sequences have {', '.join(map(str, lengths))} tensors"
            raise _refusal(node, problem, "Construct sequences with a tensor per weight.")
        signal = list(node.input)[last : last + 1]
        attributes = attributes_of(node)
        results: list[list[str]] = [[] for _ in firsts]
        nodes: Nodes = []
        for number, operands in enumerate(zip(*groups, strict=True)):
            news = [f"{operands[first - lead]}__updated_by_{node.output[0]}" for first in firsts]
            inputs = [*node.input[:lead], *operands, *signal]
            name = f"{node.output[0]}__{number}"
            options = {**attributes, "domain": MICROSOFT}
            nodes.append(helper.make_node(step, inputs, news, name=name, **options))
            for group, new in zip(results, news, strict=True):
                group.append(new)
        for position, (group, first) in enumerate(zip(results, firsts, strict=True), start=1):
            output = list(node.output)[position : position + 1]
            if output and output[0]:
                nodes.append(helper.make_node("SequenceConstruct", group, output, name=output[0]))
            else:  # in place
                for old, new in zip(groups[first - lead], group, strict=True):
                    _note_update(node, seen, old, new)
        if signal and signal[0]:
            return [*nodes, *NodeWriter(node).finish("Identity", signal)]
        return [*nodes, constant_node(node.output[0], [True])]

    return expand


def _clipped(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Expand the clipping of a sequence of gradients into that of its tensors."""
    maker = seen.makers.get(node.input[0])
    if maker is None or maker.op_type != "SequenceConstruct":
        return None
    news = [f"{name}__clipped_by_{node.output[0]}" for name in maker.input]
    options = {**attributes_of(node), "domain": MICROSOFT}
    return [
        helper.make_node(node.op_type, maker.input, news, name=f"{news[0]}__all", **options),
        helper.make_node("SequenceConstruct", news, [node.output[0]], name=node.output[0]),
    ]


def _accumulated(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Give a sum that is written in place as a further result of the graph."""
    if len(node.output) > 1 and node.output[1]:
        return None
    copy = copied(node)
    new = f"{node.input[0]}__updated_by_{node.output[0]}"
    copy.output[:] = [node.output[0], new]
    _note_update(node, seen, node.input[0], new)
    return [copy]


def _done(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Replace a signal that its operands are computed."""
    return [constant_node(node.output[0], True)]


_EXPANSIONS: dict[str, Expansion] = {
    "AdamWOptimizer": _updates(ADAM_STEP, (2, 4, 5), 2),
    "AveragePoolGrad": _average_pool_gradient,
    "BroadcastGradientArgs": _broadcast_axes,
    "ConcatTraining": _concatenated,
    "Group": _done,
    "InPlaceAccumulatorV2": _accumulated,
    "InplaceClipGradNorm": _clipped,
    "MaxPoolGrad": _max_pool_gradient,
    "SGDOptimizerV2": _updates(SGD_STEP, (1,), 1),
}
EXPANSIONS: dict[tuple[str, str], Expansion] = {
    **{(domain, name): e for name, e in _EXPANSIONS.items() for domain in ("", MICROSOFT)},
    ("", "MaxPool"): _max_pool,
    ("", "SequenceAt"): _element,
}
"""Expansions by the domain and the name of the operator."""
