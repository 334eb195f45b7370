# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write attention operators out as products, masks and a softmax.

These are ``Attention`` of ONNX (operator sets 23 and 24), and ``MultiHeadAttention`` and
``GroupQueryAttention`` of the domain ``com.microsoft``. TVM's importer knows none of them; the pass
``FuseAttention`` recognizes what is written here, and makes it a single op again.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from .batch import Seen
from .misread import attention_fault
from .node_writer import Nodes, NodeWriter
from .protos import attributes_of

MICROSOFT = "com.microsoft"


def attention_nodes(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Return the nodes of an ``Attention`` of ONNX, or None if it has what is not written out."""
    if attention_fault(node, seen) is not None:
        return None
    attributes = attributes_of(node)
    q, k, v, mask, past_k, past_v, lengths = (list(node.input) + [""] * 7)[:7]
    writer = _AttentionWriter(node, seen)
    heads = [int(attributes.get(name, 0)) for name in ("q_num_heads", "kv_num_heads")]
    q, k, v = (writer.heads_first(x, n) for x, n in ((q, heads[0]), (k, heads[1]), (v, heads[1])))
    writer.cache((past_k, k), (past_v, v))
    if mask:
        writer.mask(mask)
    if lengths:
        writer.lengths = (lengths, 0)
    writer.causal = bool(attributes.get("is_causal"))
    writer.softcap = float(attributes.get("softcap", 0.0))
    writer.softmax_type = int(attributes.get("softmax_precision", 0))
    return writer.write(q, attributes.get("scale"), joined=heads[0] > 0)


def multi_head_attention_nodes(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Return the nodes of a ``MultiHeadAttention`` of separate queries, keys and values."""
    attributes = attributes_of(node)
    q, k, v, bias, padding, added, *cached = list(node.input) + [""] * 6
    shapes = [seen.shape(x) for x in (q, k, v)]
    if any(shape is None or len(shape) != 3 for shape in shapes) or any(cached):
        return None
    if padding and len(seen.shape(padding) or ()) != 2:
        return None
    writer, heads = _AttentionWriter(node, seen), int(attributes["num_heads"])
    sides = [q, k, v]
    if bias:
        widths = np.cumsum([0, *(shape[2] for shape in shapes if shape)]).tolist()
        for i, side in enumerate(sides):
            bounds = [writer.constant(widths[i + j : i + j + 1], "int64") for j in (0, 1)]
            sides[i] = writer.added(side, writer.add("Slice", bias, *bounds))
    q, k, v = (writer.heads_first(x, heads) for x in sides)
    writer.cache(("", k), ("", v))
    if padding:
        valid = writer.add("Cast", padding, to=TensorProto.BOOL)
        columns = writer.add("Unsqueeze", valid, writer.constant([1, 2], "int64"))
        writer.mask(columns, TensorProto.BOOL)
    if added:
        writer.mask(added)
    writer.causal = bool(attributes.get("unidirectional"))
    return writer.write(q, attributes.get("scale"), joined=True)


def group_query_attention_nodes(node: onnx.NodeProto, seen: Seen, version: int) -> Nodes | None:
    """Return the nodes of a ``GroupQueryAttention`` of a whole prompt, without rotation."""
    attributes = attributes_of(node)
    q, k, v, past_k, past_v, lengths, _total, *more = list(node.input) + [""] * 7
    plain = ("num_heads", "kv_num_heads", "scale", "softcap")
    if not k or not v or past_k or past_v or any(more):
        return None
    if any(value for name, value in attributes.items() if name not in plain and value != -1):
        return None
    writer = _AttentionWriter(node, seen)
    heads = [int(attributes[name]) for name in plain[:2]]
    q, k, v = (writer.heads_first(x, n) for x, n in ((q, heads[0]), (k, heads[1]), (v, heads[1])))
    writer.cache(("", k), ("", v))
    writer.lengths, writer.causal = (lengths, 1), True
    writer.offset_by_lengths = False
    writer.softcap = float(attributes.get("softcap", 0.0))
    return writer.write(q, attributes.get("scale") or None, joined=True)


class _AttentionWriter(NodeWriter):
    """Writer of the nodes of an attention operator.

    Parameters
    ----------
    node : NodeProto
        The operator, whose further results are the keys and values with those of the cache.
    seen : Seen
        The known facts of the graph up to the node.

    Attributes
    ----------
    causal : bool
        Whether a query sees no later keys.
    lengths : tuple of str and int, optional
        The valid keys per sequence, and what is added to these numbers.
    offset_by_lengths : bool
        Whether the last query is at the last valid key of its sequence.
    softcap : float
        The bound of scores; 0 for none.
    softmax_type : int
        The type of the numbers of the softmax; 0 for that of queries.
    """

    def __init__(self, node: onnx.NodeProto, seen: Seen) -> None:
        super().__init__(node)
        self._seen = seen
        self._kind = int(seen.types[node.input[0]].tensor_type.elem_type)
        self._dtype = helper.tensor_dtype_to_np_dtype(self._kind)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._masks: list[tuple[str, int]] = []
        self._k = self._v = ""
        self._past = 0
        self.causal, self.softcap, self.softmax_type = False, 0.0, 0
        self.lengths: tuple[str, int] | None = None
        self.offset_by_lengths = True

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._shapes.get(name) or self._seen.shape(name) or ()

    def added(self, name: str, bias: str) -> str:
        """Return the sum of a value and a bias, which has the shape of the value."""
        result = self.add("Add", name, bias)
        self._shapes[result] = self._shape(name)
        return result

    def heads_first(self, name: str, heads: int) -> str:
        """Return queries, keys or values ``(batch, heads, positions, width)``."""
        shape = self._shape(name)
        if len(shape) == 4:
            return name
        split = (*shape[:2], heads, shape[2] // heads)
        name = self.add("Reshape", name, self.constant(split, "int64"))
        name = self.add("Transpose", name, perm=[0, 2, 1, 3])
        self._shapes[name] = (split[0], heads, split[1], split[3])
        return name

    def cache(self, keys: tuple[str, str], values: tuple[str, str]) -> None:
        """Set keys and values, each behind those of a cache, which the node returns with them."""
        names = []
        for i, (past, new) in enumerate((keys, values), 1):
            output = self.node.output[i] if i < len(self.node.output) else ""
            if past:
                batch, heads, rows, width = self._shape(new)
                self._past = self._shape(past)[2]
                shape = (batch, heads, rows + self._past, width)
                new = self.add("Concat", past, new, axis=2)
                self._shapes[new] = shape
            if output:
                self.nodes.append(helper.make_node("Identity", [new], [output], name=output))
            names.append(new)
        self._k, self._v = names

    def mask(self, name: str, kind: int = 0) -> None:
        """Add a mask: booleans that are true where a key is seen, or addends of the scores."""
        self._masks.append((name, kind or int(self._seen.types[name].tensor_type.elem_type)))

    def _masked_scores(self, q: str, scale: float | None) -> str:
        """Return the masked scores of queries."""
        number = 1 / math.sqrt(self._shape(q)[3]) if scale is None else float(scale)
        keys = self.add("Transpose", self._repeated(self._k, q), perm=[0, 1, 3, 2])
        scores = self.add("MatMul", q, keys)
        scores = self.add("Mul", scores, self.constant(number, self._dtype))
        if self.softcap:
            cap = self.constant(self.softcap, self._dtype)
            scores = self.add("Mul", self.add("Tanh", self.add("Div", scores, cap)), cap)
        self._masks += [(name, TensorProto.BOOL) for name in self._position_masks(q)]
        low = self.constant(-np.inf, self._dtype)
        for mask, kind in sorted(self._masks, key=lambda pair: pair[1] == TensorProto.BOOL):
            if kind == TensorProto.BOOL:
                scores = self.add("Where", mask, scores, low)
            else:
                scores = self.add("Add", scores, mask)
        return scores

    def write(self, q: str, scale: float | None, joined: bool) -> Nodes:
        """Write the nodes of the result, whose heads are joined with their width or not."""
        scores = self._masked_scores(q, scale)
        if self.softmax_type:
            scores = self.add("Cast", scores, to=self.softmax_type)
        weights = self.add("Softmax", scores, axis=-1)
        if len(self._masks) > self.causal or self.lengths:
            weights = self._without_unseen_rows(scores, weights)
        if self.softmax_type:
            weights = self.add("Cast", weights, to=self._kind)
        values = self._repeated(self._v, q)
        if not joined:
            return self.finish("MatMul", [weights, values])
        batch, heads, rows, _ = self._shape(q)
        mixed = self.add("Transpose", self.add("MatMul", weights, values), perm=[0, 2, 1, 3])
        joined_shape = (batch, rows, heads * self._shape(self._v)[3])
        return self.finish("Reshape", [mixed, self.constant(joined_shape, "int64")])

    def _repeated(self, name: str, q: str) -> str:
        """Return keys or values with each head as often as query heads share it."""
        batch, heads, rows, width = self._shape(name)
        shared = self._shape(q)[1] // heads
        if shared == 1:
            return name
        single = self.add("Unsqueeze", name, self.constant([2], "int64"))
        sizes = self.constant([batch, heads, shared, rows, width], "int64")
        wide = self.add("Expand", single, sizes)
        joined = self.constant([batch, heads * shared, rows, width], "int64")
        return self.add("Reshape", wide, joined)

    def _position_masks(self, q: str) -> list[str]:
        """Return the masks of later keys, and of keys behind the end of their sequence."""
        batch, _, rows, _ = self._shape(q)
        columns = self.constant(np.arange(self._shape(self._k)[2])[None], "int64")
        positions = self.constant(self._past + np.arange(rows)[:, None], "int64")
        masks = []
        if self.lengths is not None:
            name, more = self.lengths
            flat = self.add("Reshape", name, self.constant([batch, 1, 1, 1], "int64"))
            ends = self.add("Cast", flat, to=TensorProto.INT64)
            ends = self.add("Add", ends, self.constant(more, "int64"))
            masks.append(self.add("Less", columns, ends))
            if self.offset_by_lengths:
                starts = self.add("Sub", ends, self.constant(rows, "int64"))
                positions = self.add("Add", positions, starts)
        if self.causal:
            masks.append(self.add("LessOrEqual", columns, positions))
        return masks

    def _without_unseen_rows(self, scores: str, weights: str) -> str:
        """Return weights that are zero, not NaN, for a query that sees no key."""
        kind = self.softmax_type or self._kind
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        unseen = self.add("Equal", scores, self.constant(-np.inf, dtype))
        seen = self.add("Cast", self.add("Not", unseen), to=TensorProto.INT32)
        any_seen = self.add("ReduceMax", seen, self.constant([-1], "int64"), keepdims=1)
        none_seen = self.add("Not", self.add("Cast", any_seen, to=TensorProto.BOOL))
        return self.add("Where", none_seen, self.constant(0, dtype), weights)
