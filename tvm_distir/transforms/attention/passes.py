# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define FuseAttention, which replaces softmax attention that is written out by the op.

Before, with ``q, k, v`` of ``(batch, heads, positions, width)``::

    scores = R.matmul(q, R.permute_dims(k, [0, 1, 3, 2]))
    scaled = R.multiply(scores, R.const(0.125))
    masked = R.where(mask, scaled, R.const(-1e30))      # mask: columns <= rows
    mixed = R.matmul(R.nn.softmax(masked, -1), v)

After::

    pair = R.dist.attention(q_, k_, v_, scale=0.125, causal=True)   # heads behind positions
    mixed = R.permute_dims(pair[0], [0, 2, 1, 3])

The weights are those of the same softmax; half precision is rounded once, at the result. Scores are
in no memory any more, and a mask that only says "not later" is computed nowhere.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax import op

from tvm_distir.core.ir import is_private, known_shape, relax_functions
from tvm_distir.core.ir.operators import (
    UNSEEN,
    AttentionForm,
    attention,
    free_name,
    nn_attention_form,
)
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.plan import Plan
from tvm_distir.core.rewriting import (
    BlockWriter,
    all_bindings,
    let_out,
    op_name,
    scalar,
    variables,
    with_body,
)
from tvm_distir.core.rewriting.native import Readings
from tvm_distir.transforms.optimize.unused import removed

from .mask_variants import divided_by_masks
from .masks import Band, Fact, MaskReader
from .matching import HEADS_FIRST, Match, Matcher, Unmatched
from .normal_form import in_normal_form

LOG = logging.getLogger(__name__)
_NN = ("nn.attention", "nn.attention_bias")
_SOFTMAX = ("nn.softmax", "exp")
"""A softmax, and the exponential of one that is written out."""
_SEEN_AND_UNSEEN = (scalar(0.0, "float32"), scalar(UNSEEN, "float32"))
_QUERIES, _KEYS, _VALUES = "queries", "keys", "values"
"""Names of variables for operands of the op, by which plans and tables refer to them."""
_SWAP = [0, 2, 1, 3]
"""The order of dims that puts heads before positions, and back."""
_TURNED = [0, 3, 1, 2, 4]
"""The order of dims that puts positions before key heads and the heads that share each."""
_GROUPS_FIRST = [0, 2, 3, 1, 4]
"""The order of dims that undoes it."""


@module_pass(("global", "annotated"))
def FuseAttention() -> Rewrite:
    """Replace softmax attention that is written out, and ``nn.attention``, by ``R.dist.attention``.

    Products, a scale before or behind the first, casts around the softmax, masks and addends,
    scores that are capped, a sink per head (one more column of the softmax, without a value) and
    heads that share keys are recognized in every function, and the forms into which PyTorch and
    JAX decompose attention (:mod:`.normal_form`). A mask that depends on positions only, also one
    that callers compute, becomes the attribute ``causal`` or ``window``, and a function that is
    called with several such masks becomes one function for each; others become a bias.
    What nothing reads any more is removed, parameters of private functions too. A softmax over
    four dims that stays is named, with the reason, in the log of this module.

    Returns
    -------
    pass : tvm.transform.Pass
    """

    def fuse_attention(mod: ir.IRModule) -> ir.IRModule:
        if not any(_may_attend(b) for _, fn in relax_functions(mod) for b in all_bindings(fn.body)):
            return mod
        normal = {gv: in_normal_form(fn) for gv, fn in relax_functions(mod)}
        divided = divided_by_masks(normal, lambda functions: _facts_of(functions).reader)
        facts = _facts_of(divided)
        new = dict(mod.functions.items())
        for gv, fn in divided.items():
            fused = _Fuser(str(gv.name_hint), fn, facts).run()
            if gv not in normal or not fused.same_as(normal[gv]):
                new[gv] = fused
        if len(divided) == len(normal) and all(fn.same_as(mod[gv]) for gv, fn in new.items()):
            return mod
        result = ir.IRModule(new, attrs=mod.attrs, global_infos=mod.global_infos)
        return removed(result, Readings())

    return fuse_attention


def fused_for(mod: ir.IRModule, plan: Plan) -> ir.IRModule:
    """Return the module that the rules of a plan are for: with attention as an op, or as it is."""
    return FuseAttention()(mod) if plan.attention else mod


def _may_attend(binding: Any) -> bool:
    """Return whether a binding may be of softmax attention that is no op."""
    name = op_name(binding.value)
    return name in _NN or (name in _SOFTMAX and len(binding.var.ty.shape or ()) in HEADS_FIRST)


def with_log_sum_exp(mod: ir.IRModule) -> ir.IRModule:
    """Replace ``nn.attention`` by the op that also returns what its gradient reads."""
    new = {
        gv: _Fuser(str(gv.name_hint), fn, None).run() if isinstance(fn, relax.Function) else fn
        for gv, fn in mod.functions.items()
    }
    if all(fn.same_as(mod[gv]) for gv, fn in new.items()):
        return mod
    return ir.IRModule(new, attrs=mod.attrs, global_infos=mod.global_infos)


def _facts_of(functions: Mapping[Any, relax.Function]) -> _Facts:
    return _Facts({str(gv.name_hint): (gv, fn) for gv, fn in functions.items()})


class _Facts:
    """Reader of what all calls of a private function say about its parameters."""

    def __init__(self, functions: Mapping[str, tuple[Any, relax.Function]]) -> None:
        self._functions = functions
        self._calls: dict[str, list[tuple[str, Any]]] = {}
        self._values: dict[str, dict[Any, Any]] = {}
        for name, (_, fn) in functions.items():
            self._values[name] = {b.var: b.value for b in all_bindings(fn.body)}
            for value in self._values[name].values():
                if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
                    self._calls.setdefault(str(value.op.name_hint), []).append((name, value))
        self._readers: dict[str, MaskReader] = {}

    def reader(self, name: str) -> MaskReader:
        """Return the reader of a function's masks."""
        if name not in self._readers:
            fn = self._functions[name][1]
            numbers = {param: i for i, param in enumerate(fn.params)}

            def of_param(var: Any) -> Fact | None:
                if var not in numbers or not is_private(fn):
                    return None
                calls = self._calls.get(name, ())
                states = {self.reader(caller).of(c.args[numbers[var]]) for caller, c in calls}
                return states.pop() if len(states) == 1 else None

            self._readers[name] = MaskReader(self._values[name], of_param, self._of_call)
        return self._readers[name]

    def _of_call(self, call: Any) -> Fact | None:
        """Return what is known of the result of a private function, by all of its calls."""
        name = str(call.op.name_hint)
        fn = self._functions[name][1] if name in self._functions else None
        if fn is None or not is_private(fn):
            return None
        return self.reader(name).of(fn.body.body)


class _Fuser:
    """Rewriter of a function; without facts, of ``nn.attention`` only."""

    def __init__(self, name: str, fn: relax.Function, facts: _Facts | None) -> None:
        self._name, self._fn, self._facts = name, fn, facts
        bindings = all_bindings(fn.body)
        self._values = {b.var: b.value for b in bindings}
        self._readers: dict[Any, list[Any]] = {}
        for binding in bindings:
            for var in variables(binding.value):
                self._readers.setdefault(var, []).append(binding.var)
        for var in variables(fn.body.body):
            self._readers.setdefault(var, []).append(None)
        self._writer: Any = None
        self._names = {str(var.name) for var in (*fn.params, *self._values)}

    def run(self) -> relax.Function:
        """Return the function, or the given function if nothing in it changes."""
        matches = self._matches()
        direct = {v for v, value in self._values.items() if op_name(value) in _NN}
        if not matches and not direct:
            return self._fn
        builder, blocks = relax.BlockBuilder(), []
        for block in self._fn.body.blocks:
            self._writer = BlockWriter(builder, isinstance(block, relax.DataflowBlock))
            for binding in block.bindings:
                if binding.var in matches:
                    target, match = matches[binding.var]
                    self._fuse(binding.var, target, match)
                elif binding.var not in direct or not self._replace(binding.var, binding.value):
                    self._writer.bindings.append(binding)
            blocks.append(self._writer.block())
        blocks_out, result = let_out(blocks, self._fn.body.body)
        return with_body(self._fn, self._fn.params, blocks_out, result, bool(self._fn.is_pure))

    def _matches(self) -> dict[Any, tuple[str, Match]]:
        """Return the attention that replaces a value: the product, or what turns it back."""
        result: dict[Any, tuple[str, Match]] = {}
        if self._facts is None:
            return result
        matcher = Matcher(self._values, self._readers, self._facts.reader(self._name))
        for var, value in self._values.items():
            if op_name(value) != "nn.softmax":
                continue
            try:
                match = matcher.match(var)
                _form(match)
                _check_types(match)
            except Unmatched as why:
                if len(known_shape(var.ty) or ()) > 3:
                    LOG.info("%s: the softmax %s stays: %s", self._name, var.name, why)
                continue
            result.update([self._target(match)])
        return result

    def _target(self, match: Match) -> tuple[Any, tuple[str, Match]]:
        """Return the value that the op's result replaces, and its layout."""
        var, layout = match.result, "heads first"
        _batch, *heads, _rows, _width = match.result.ty.shape
        if len(heads) > 1:
            layout = "groups"
            single = self._single(var, "reshape")
            want = known_shape(match.result.ty)
            if single is not None and want is not None:
                joined = (want[0], want[1] * want[2], *want[3:])
                if known_shape(single.ty) == joined:
                    var, layout = single, "heads first"
            turned = self._single(var, "permute_dims")
            if turned is not None and want is not None and _order(self._values[turned]) == _TURNED:
                single = self._single(turned, "reshape")
                joined = (want[0], want[3], want[1] * want[2], want[4])
                if single is not None and known_shape(single.ty) == joined:
                    return single, ("positions first", match)
        if layout == "heads first":
            turned = self._single(var, "permute_dims")
            if turned is not None and _order(self._values[turned]) == _SWAP:
                return turned, ("positions first", match)
        return var, (layout, match)

    def _single(self, var: Any, name: str) -> Any:
        """Return the only reader of a value if it is a call of an op."""
        readers = self._readers.get(var, ())
        if len(readers) == 1 and op_name(self._values.get(readers[0])) == name:
            return readers[0]
        return None

    def _emit(self, value: Any, name: str) -> Any:
        """Bind a value to a variable of a new name, by which plans can refer to it."""
        name = free_name(name, self._names)
        self._names.add(name)
        return self._writer.emit(value, name)

    def _fuse(self, var: Any, layout: str, match: Match) -> None:
        """Bind a value to what the op computes."""
        q = self._queries(match.q, _QUERIES)
        key, order = match.k
        if len(order) > len(_SWAP):
            if order != [*range(len(order))]:
                key = self._emit(op.permute_dims(key, order), _KEYS)
            key, order = self._joined(key, _KEYS), [0, 1, 2, 3]
        k = self._shared(self._ordered(key, [order[i] for i in _SWAP], _KEYS), _KEYS)
        value = self._joined(match.v, _VALUES)
        v = self._shared(self._ordered(value, _SWAP, _VALUES), _VALUES)
        if int(k.ty.shape[2]) != int(v.ty.shape[2]):
            k, v = self._ordered(key, _SWAP, _KEYS), self._ordered(value, _SWAP, _VALUES)
        more = self._bias(match, "bias")
        more += [] if match.sinks is None else [match.sinks]
        form, name = _form(match), "attention"
        pair = self._emit(attention(q, k, v, *more, **vars(form)), name)
        out = relax.TupleGetItem(pair, 0)
        if layout == "positions first":
            self._writer.bind(var, self._writer.builder.normalize(out))
            return
        out = op.permute_dims(self._emit(out, name), _SWAP)
        if layout == "groups":
            out = op.reshape(self._emit(out, name), var.ty.shape)
        self._writer.bind(var, self._writer.builder.normalize(out))

    def _replace(self, var: Any, call: ir.Call) -> bool:
        """Bind the result of ``nn.attention`` to that of the op."""
        form, bias = nn_attention_form(call, _Emitting(self._writer))
        if form is None:
            LOG.info("%s: nn.attention %s stays: it has a window", self._name, var.name)
            return False
        k, v = self._shared(call.args[1], _KEYS), self._shared(call.args[2], _VALUES)
        if int(k.ty.shape[2]) != int(v.ty.shape[2]):
            k, v = call.args[1:3]
        pair = self._emit(attention(call.args[0], k, v, *bias, **vars(form)), "attention")
        self._writer.bind(var, self._writer.builder.normalize(relax.TupleGetItem(pair, 0)))
        return True

    def _queries(self, expr: Any, name: str) -> Any:
        """Return queries with positions before heads, whose dims are joined."""
        value: Any = self._values.get(expr)
        if op_name(value) == "permute_dims" and _order(value) == _GROUPS_FIRST:
            grouped = value.args[0]
            batch, rows, heads, shared, width = grouped.ty.shape
            source: Any = self._values.get(grouped)
            joined = (batch, rows, heads * shared, width)
            if op_name(source) == "reshape" and _equal(source.args[0], joined):
                return source.args[0]
            return self._emit(op.reshape(grouped, joined), name)
        return self._ordered(self._joined(expr, name), _SWAP, name)

    def _joined(self, expr: Any, name: str) -> Any:
        """Return an operand of five dims with its two dims of heads joined."""
        batch, *heads, rows, width = expr.ty.shape
        if len(heads) == 1:
            return expr
        joined = (batch, heads[0] * heads[1], rows, width)
        source: Any = self._values.get(expr)
        while op_name(source) in ("reshape", "expand_dims"):
            inner = source.args[0]
            if known_shape(inner.ty) == tuple(int(n) for n in joined[1:]) or _equal(inner, joined):
                return inner
            source = self._values.get(inner)
        return self._emit(op.reshape(expr, joined), name)

    def _ordered(self, expr: Any, order: list[int], name: str) -> Any:
        """Permute a value, together with the permutation that it is."""
        value: Any = self._values.get(expr)
        if op_name(value) == "permute_dims" and value.attrs.axes is not None:
            axes = _order(value)
            expr, order = value.args[0], [axes[i] for i in order]
        if order == [*range(len(order))]:
            return expr
        return self._emit(op.permute_dims(expr, order), name)

    def _shared(self, expr: Any, name: str) -> Any:
        """Return keys or values ``(B, T, H, D)`` without repetitions of heads."""
        value = self._writer_value(expr)
        order = [0, 1, 2, 3]
        if op_name(value) == "permute_dims":
            order, expr = _order(value), value.args[0]
            value = self._writer_value(expr)
        source = self._unrepeated(value, order[2])
        if source is None:
            if order == [0, 1, 2, 3]:
                return expr
            return self._ordered(expr, order, name)
        return self._ordered(source, order, name)

    def _writer_value(self, expr: Any) -> Any:
        value: Any = self._values.get(expr)
        if value is None:
            value = next((b.value for b in self._writer.bindings if b.var.same_as(expr)), None)
        return value

    def _unrepeated(self, value: Any, heads: int) -> Any:
        """Return what is repeated along the dim of heads, each several times in turn."""
        if op_name(value) == "repeat":
            axis = value.attrs.axis
            return value.args[0] if axis is not None and int(axis) % 4 == heads else None
        if op_name(value) != "reshape":
            return None
        spread: Any = self._values.get(value.args[0])
        if op_name(spread) != "broadcast_to":
            return None
        single = known_shape(spread.args[0].ty) or ()
        wide = known_shape(spread.ty) or ()
        if len(single) != len(_SWAP) + 1 or len(wide) != len(single):
            return None
        if single[heads + 1] != 1 or [n for i, n in enumerate(wide) if i != heads + 1] != [
            n for i, n in enumerate(single) if i != heads + 1
        ]:
            return None
        below: Any = self._values.get(spread.args[0])
        want = tuple(n for i, n in enumerate(single) if i != heads + 1)
        if op_name(below) in ("expand_dims", "reshape"):
            return below.args[0] if known_shape(below.args[0].ty) == want else None
        return None

    def _bias(self, match: Match, name: str) -> list[Any]:
        """Return the sum of what is added to the scores, and of masks, or nothing."""
        seen: Any = None
        terms = []
        for mask, is_seen in match.masks:
            if is_seen:
                seen = mask if seen is None else self._emit(op.logical_and(mask, seen), name)
            else:
                terms.append(self._emit(op.where(mask, *_SEEN_AND_UNSEEN[::-1]), name))
        if seen is not None:
            terms.append(self._emit(op.where(seen, *_SEEN_AND_UNSEEN), name))
        heads = [int(n) for n in list(match.result.ty.shape)[1:-2]]
        total: Any = None
        for term in [*terms, *match.biases]:
            term = self._of_four_dims(term, heads, name)
            if total is None:
                total = term
                continue
            if str(term.ty.dtype) != str(total.ty.dtype):
                term, total = [self._emit(op.astype(x, "float32"), name) for x in (term, total)]
            total = self._emit(op.add(total, term), name)
        return [] if total is None else [total]

    def _of_four_dims(self, term: Any, heads: list[int], name: str) -> Any:
        """Return what is added to the scores with a single dim of heads, or of no head."""
        shape = [int(n) if isinstance(n, tirx.IntImm) else n for n in term.ty.shape]
        lead = [1] * (len(heads) + 3 - len(shape))
        batch, *groups, rows, columns = lead + shape
        if not any(n != 1 for n in groups):
            flat = [batch, 1, rows, columns]
        else:
            whole = [batch, *heads, rows, columns]
            if lead or groups != heads:
                term = self._emit(op.broadcast_to(term, whole), name)
            flat = [batch, math.prod(heads), rows, columns]
        if len(shape) == len(flat) and all(map(_equal_sizes, shape, flat)):
            return term
        return self._emit(op.reshape(term, flat), name)


class _Emitting:
    """The method ``emit`` of a block builder, for a writer."""

    def __init__(self, writer: BlockWriter) -> None:
        self._writer = writer

    def emit(self, value: Any) -> Any:
        """Bind a value."""
        return self._writer.emit(value, "bias")


def _order(call: Any) -> list[int]:
    count = len(call.args[0].ty.shape)
    axes = call.attrs.axes
    return list(range(count))[::-1] if axes is None else [int(a) % count for a in axes]


def _equal(expr: Any, shape: Any) -> bool:
    have = list(expr.ty.shape)
    return len(have) == len(shape) and all(map(_equal_sizes, have, shape))


def _equal_sizes(a: Any, b: Any) -> bool:
    return str(a) == str(b)


def _form(match: Match) -> AttentionForm:
    """Return the attributes of the op."""
    band = match.band
    if band == Band():
        return AttentionForm(match.scale, cap=match.cap)
    offset = band.below or 0
    window = 0 if band.above is None else offset - band.above
    return AttentionForm(match.scale, True, window, offset, match.cap)


def _check_types(match: Match) -> None:
    """Refuse operands that the op does not take."""
    sides = [match.q, match.k[0], match.v, match.result]
    kinds = {str(x.ty.dtype) for x in sides}
    if len(kinds) > 1:
        raise Unmatched(f"its operands are of the types {', '.join(sorted(kinds))}")
    q, (k, order), v = known_shape(match.q.ty), match.k, known_shape(match.v.ty)
    keys = known_shape(k.ty)
    if q is None or keys is None or v is None:
        if str(match.q.ty.shape[0]) != str(match.v.ty.shape[0]):
            raise Unmatched("its operands have other batches")
    elif not q[0] == keys[order[0]] == v[0]:
        raise Unmatched("its operands have other batches")
    if len(order) > len(_SWAP) and (
        int(k.ty.shape[order[2]]) != 1 or int(match.v.ty.shape[2]) != 1
    ):
        raise Unmatched("keys of heads that share none are in five dims")
    if math.isclose(match.scale, 0.0):
        raise Unmatched("its scale is zero")
