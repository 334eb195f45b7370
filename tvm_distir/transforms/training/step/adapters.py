# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Add low-rank adapters to the products of a model (LoRA, Hu et al. 2022).

A product ``y = x w`` of a weight of the shape (out, in), or (in, out), becomes
``y = x w + (alpha / r) (x A^T) B^T`` with the adapters ``A``, (r, in), and ``B``, (out, r), which
alone are trained. They are named as PEFT names them: ``X.lora_A.weight`` beside ``X.weight``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr
from tvm.relax.op import add, astype, matmul, multiply, permute_dims

from tvm_distir.core.ir import known_shape, relax_functions
from tvm_distir.core.ir.attributes import PARAM_NAMES_ATTR, param_names
from tvm_distir.core.plan import data_positions, match_name, plain_name
from tvm_distir.core.rewriting import (
    BlockWriter,
    callee_of,
    callees_first,
    op_name,
    plain_calls,
    rebuild,
    retyped,
    scalar,
    unpartitioned,
    with_body,
    with_functions,
)
from tvm_distir.support import nearest, shortened
from tvm_distir.transforms.step_faults import wrong_argument

from .adapter_options import (
    ADAPTERS_ATTR,
    ALL_LINEAR,
    Lora,
    adapter_names,
    adapters_of,
    layer_of,
)

ADAPTER_DELTA = "_lora"
"""Ends the name of what an adapter adds to a product."""
_VIEWS = ("permute_dims", "astype")
_AFTER = ("astype", "reshape", "add", "multiply", "divide", "tanh")
"""Ops between the last product and the output of a model."""


def with_adapters(mod: ir.IRModule, lora: str) -> ir.IRModule:
    """Return a model with low-rank adapters, which are its last parameters.

    :func:`tvm_distir.train_step` trains them alone.

    Parameters
    ----------
    mod : IRModule
        A model, at level 1.
    lora : str
        ``r=16,alpha=32,targets=q_proj+v_proj``, by default 8, 8 and all-linear; empty: none.

    Raises
    ------
    ModelError
        DIST0351 for other text, a model that has adapters, or where a target fits no weight that
        a product multiplies, or the weights of some calls of a function alone.
    """
    if not lora:
        return mod
    if adapters_of(mod):
        raise wrong_argument("the model has adapters", "State them once.", "lora")
    return _Adapter(unpartitioned(plain_calls(mod)), Lora.parse(lora)).run()


class _Adapter:
    """Writer of a model with adapters."""

    def __init__(self, mod: ir.IRModule, lora: Lora) -> None:
        self.mod, self.lora = mod, lora
        self.functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
        self.chosen: dict[str, dict[int, str | None]] = {}
        self.rows: dict[str, dict[int, tuple[relax.Var, relax.Var]]] = {}
        self.variables: dict[str, ir.GlobalVar] = {}
        self.transposed: dict[tuple[str, int], bool] = {}

    def run(self) -> ir.IRModule:
        """Return the model with adapters."""
        order = callees_first(self.mod)
        main = self.mod["main"]
        data = set(data_positions(main))
        names = dict(enumerate(param_names(main)))
        matrices = {i for i, p in enumerate(main.params) if _is_matrix(p) and i not in data}
        self.chosen["main"] = {i: self.lora.target_of(names[i]) for i in sorted(matrices)}
        for gv, fn in reversed(order):
            self._choose_in_callees(str(gv.name_hint), fn)
        new: dict[ir.GlobalVar, ir.BaseFunc] = dict(self.mod.functions.items())
        for gv, fn in order:
            name = str(gv.name_hint)
            if name in self.chosen:
                written = _FunctionWriter(self, name, fn).run()
                self.variables[name] = gv if written.same_as(fn) else retyped(gv, written.ty)
                del new[gv]
                new[self.variables[name]] = written
        factor, turned = repr(self.lora.factor), self.transposed
        notes = {
            names[i]: [*adapter_names(names[i]), factor, str(int(turned["main", i]))]
            for i in self.rows["main"]
        }
        self._check_targets(names, notes)
        return with_functions(self.mod, new).with_attr(ADAPTERS_ATTR, notes)

    def _choose_in_callees(self, name: str, fn: relax.Function) -> None:
        """Choose the weights of the functions that a function calls."""
        chosen = {fn.params[i]: target for i, target in self.chosen.get(name, {}).items()}
        for value in (b.value for block in fn.body.blocks for b in block.bindings):
            gv = callee_of(value)
            callee = "" if gv is None else str(gv.name_hint)
            if callee not in self.functions:
                continue
            before = self.chosen.setdefault(callee, {})
            for i, arg in enumerate(value.args):
                param = self.functions[callee].params[i]
                target = chosen.get(arg)
                if _is_matrix(param) and before.setdefault(i, target) != target:
                    raise wrong_argument(
                        f"the targets fit {param.name} of some calls of {callee}, not of all",
                        "Name the weights of all calls.", "lora",
                    )  # fmt: skip

    def _check_targets(self, names: Mapping[int, str], adapted: Collection[str]) -> None:
        """Reject a target that fits no weight that a product multiplies (DIST0351)."""
        used = {self.lora.target_of(name) for name in adapted}
        for target in self.lora.targets:
            if target not in used and not any(match_name(target, n) for n in adapted):
                if target == ALL_LINEAR:
                    problem = "no product reads a matrix, but for that which makes the output"
                    raise wrong_argument(problem, "Train the weights, without adapters.", "lora")
                matrices = [layer_of(names[i]).rpartition(".")[2] for i in self.chosen["main"]]
                raise wrong_argument(
                    f'there is no product with a weight "{shortened(target)}"',
                    nearest(target, [ALL_LINEAR, *sorted({*matrices})]), "lora",
                )  # fmt: skip


class _FunctionWriter:
    """Writer of a function with adapters."""

    def __init__(self, adapter: _Adapter, name: str, fn: relax.Function) -> None:
        self.adapter, self.name, self.fn = adapter, name, fn
        self.numbers = {param: i for i, param in enumerate(fn.params)}
        self.views: dict[Expr, tuple[int, bool]] = {}
        for i, target in adapter.chosen[name].items():
            if target is not None:
                self.views[fn.params[i]] = i, False
        self.rows: dict[int, tuple[relax.Var, relax.Var]] = {}
        self.builder = relax.BlockBuilder()
        self.last = _last_product(fn) if name == "main" else None

    def run(self) -> relax.Function:
        """Return the function; its adapters follow its parameters."""
        fn, adapter = self.fn, self.adapter
        self.builder.begin_scope(list(fn.params))
        blocks = BlockWriter.rewritten(self.builder, fn.body.blocks, self._write)
        self.builder.end_scope()
        adapter.rows[self.name] = self.rows
        if not self.rows:
            return fn
        new = [var for pair in self.rows.values() for var in pair]
        attrs: dict[str, Any] = dict(fn.attrs or {})
        if PARAM_NAMES_ATTR in attrs or self.name == "main":
            names = param_names(fn)
            added = [name for i in self.rows for name in adapter_names(names[i])]
            attrs[PARAM_NAMES_ATTR] = [*names, *added]
        attributes = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
        body = with_body(fn, [*fn.params, *new], blocks, fn.body.body, bool(fn.is_pure), attributes)
        return relax.utils.copy_with_new_vars(body)

    def _write(self, writer: BlockWriter, binding: relax.Binding) -> None:
        var, value = binding.var, binding.value
        gv = callee_of(value)
        name = op_name(value)
        if gv is not None and str(gv.name_hint) in self.adapter.rows:
            writer.bind(var, self._call(str(gv.name_hint), value))
            return
        writer.bindings.append(binding)
        if name in _VIEWS and value.args[0] in self.views:
            number, transposed = self.views[value.args[0]]
            self.views[var] = number, transposed ^ (name == "permute_dims")
        elif name == "matmul" and value.args[1] in self.views and not var.same_as(self.last):
            writer.bindings.pop()
            base = writer.add(value, f"{var.name}_base")
            writer.bind(var, self._adapted(writer, var, base, value))

    def _adapted(self, writer: BlockWriter, var: relax.Var, base: Expr, product: ir.Call) -> Expr:
        """Return the sum of a product and of what its adapters add."""
        number, is_view = self.views[product.args[1]]
        lora, x = self.adapter.lora, product.args[0]
        down, up = self._adapters(number, not is_view)
        inner = writer.emit(matmul(x, writer.emit(permute_dims(down), f"{down.name}_t")), down.name)
        if lora.factor != 1:
            factor = scalar(lora.factor, str(inner.ty.dtype))
            inner = writer.emit(multiply(inner, factor), f"{down.name}_scaled")
        delta = matmul(inner, writer.emit(permute_dims(up), f"{up.name}_t"))
        if str(base.ty.dtype) != str(inner.ty.dtype):
            delta = astype(writer.emit(delta, f"{var.name}_narrow"), str(base.ty.dtype))
        return self.builder.normalize(add(base, writer.emit(delta, f"{var.name}{ADAPTER_DELTA}")))

    def _adapters(self, number: int, is_transposed: bool) -> tuple[relax.Var, relax.Var]:
        """Return the adapters of a parameter."""
        if number not in self.rows:
            param = self.fn.params[number]
            rows, columns = known_shape(param.ty) or (None, None)
            wide = (columns, rows) if is_transposed else (rows, columns)
            rank, dtype = self.adapter.lora.r, str(param.ty.dtype)
            self.adapter.transposed[self.name, number] = is_transposed
            self.rows[number] = self._variables(
                number, relax.TensorType([rank, wide[1]], dtype),
                relax.TensorType([wide[0], rank], dtype),
            )  # fmt: skip
        return self.rows[number]

    def _variables(self, number: int, *types: ir.Type) -> tuple[relax.Var, relax.Var]:
        names = map(plain_name, adapter_names(str(self.fn.params[number].name)))
        down, up = (relax.Var(name, ty) for name, ty in zip(names, types, strict=True))
        return down, up

    def _call(self, callee: str, call: ir.Call) -> ir.Call:
        """Return a call with the adapters of its weights."""
        added: list[relax.Var] = []
        for at, pair in self.adapter.rows[callee].items():
            number = self.numbers[call.args[at]]
            self.adapter.transposed[self.name, number] = self.adapter.transposed[callee, at]
            if number not in self.rows:
                self.rows[number] = self._variables(number, *(var.ty for var in pair))
            added += self.rows[number]
        return rebuild(call, self.adapter.variables[callee], [*call.args, *added])


def _is_matrix(param: relax.Var) -> bool:
    shape = known_shape(param.ty)
    return shape is not None and len(shape) == 2 and "float" in str(param.ty.dtype)


def _last_product(fn: relax.Function) -> Expr | None:
    """Return the product that makes the output of a model, where the output is a single tensor."""
    values = {b.var: b.value for block in fn.body.blocks for b in block.bindings}
    var: Expr = fn.body.body
    for _ in range(len(values)):
        value = values.get(var)
        if isinstance(value, ir.Call) and op_name(value) in _AFTER:
            var = value.args[0]
        elif isinstance(value, relax.Var):
            var = value
        else:
            return var if value is not None and op_name(value) == "matmul" else None
    return None
