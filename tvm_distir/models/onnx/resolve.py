# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Infer static shapes of a weightless ONNX graph at any batch.

One walk over the nodes infers every shape with ONNX's own node inference and evaluates what
depends on shapes and constants alone (``Shape``, ``Gather`` of it, ...), so that the importer
meets constants. To change the batch the walk is made twice, at the old and at the new batch: a
dim that differs between the two carries the batch, so a constant that pins it is seen and
rewritten where its meaning is clear, and named where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from tvm_distir.support import ModelError

from .batch import carrying_dims, check_kept, note_outer, refusal, rewrite_pinned
from .input_shapes import Shape
from .protos import copied, refill
from .skeleton import drop_dead_constants
from .walk import ShapeWalk


def resolve(
    model: onnx.ModelProto, old: Mapping[str, Shape], new: Mapping[str, Shape]
) -> onnx.ModelProto:
    """Return the graph at the input shapes ``new``, with shapes folded and constants adapted.

    Parameters
    ----------
    model : ModelProto
        Weightless.
    old, new : mapping of str to shape
        Shapes of all graph inputs, as `static_shapes` gives them.

    Raises
    ------
    ModelError
        DIST0310 shapes that do not fit, DIST0311 an unknown operator, DIST0314 a node that pins
        the batch in a way that cannot be rewritten, or an output without batch.
    """
    before = ShapeWalk(model, old)
    if dict(old) == dict(new):
        visited = [part for node in model.graph.node for part in before.visit(node)]
        return _replaced(model, visited, before)
    after = ShapeWalk(model, new)
    batches = next((old[name][0], new[name][0]) for name in old if old[name] != new[name])
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        before.visit(node)
        extra, fitted = rewrite_pinned(node, before, after, batches)
        try:
            nodes.extend(new_node for part in [*extra, fitted] for new_node in after.visit(part))
        except ModelError as error:
            raise refusal(node, error.what) from error
        check_kept(node, before, after)
        note_outer(node, before, after)
    for output in model.graph.output:
        if not carrying_dims(output.name, before, after):
            problem = "the output does not scale with the batch"
            remedy = "Remove --batch, or export the model with the required batch."
            raise ModelError("DIST0314", problem, location=output.name, remedy=remedy)
    return _replaced(model, nodes, after)


def _replaced(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], walk: ShapeWalk
) -> onnx.ModelProto:
    """Return the model with other nodes, and the inferred shapes of inputs and outputs.

    What nodes write in place becomes a further output.
    """
    result = copied(model)
    refill(result.graph.node, nodes)
    result.graph.output.extend(onnx.ValueInfoProto(name=new) for new in walk.updated.values())
    drop_dead_constants(result.graph)
    for value in [*result.graph.input, *result.graph.output]:
        if value.name in walk.types:
            value.type.CopyFrom(walk.types[value.name])
    return result
