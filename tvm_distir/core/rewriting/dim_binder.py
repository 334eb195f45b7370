# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrites the functions of a module with numbers in place of symbolic dims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.operators.names import first_or_new_name
from tvm_distir.core.ir.types import is_private
from tvm_distir.support import ModelError

from .calls import TIR_CALLS, called_name, location_of, typed
from .functions import callees_first, retyped
from .kernel_binding import KernelCall, contradiction, specialise_kernel

_OP = re.compile(r'In ir\.Op\(.*?name="(?:relax\.)?([\w.]+)".*?support_level=\d+\), ')


_SHORT = r"\1: "
"""Pattern of an op at the beginning of a message of TVM, and its name."""


_KERNEL_CALLS = (*TIR_CALLS, "relax.call_tir_inplace")


def extents(ty: ir.Type) -> Iterator[Any]:
    """Return the dims of all tensors and shapes in a type, in order."""
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from extents(field)
        return
    if isinstance(ty, relax.ShapeType):
        yield from ty.values or ()
        return
    ty = getattr(ty, "tensor_ty", ty)
    shape = getattr(ty, "shape", None)
    if isinstance(shape, relax.ShapeExpr):
        yield from shape.values


def _same(left: ir.Expr, other: ir.Expr) -> bool:
    return bool(left.same_as(other))


@contextmanager
def _size_errors(location: str) -> Iterator[None]:
    """Convert a type error of TVM in a well-typed module to ModelError DIST0313."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as err:
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        raise ModelError(
            "DIST0313",
            f"sizes contradict each other: {_OP.sub(_SHORT, (lines or ['no message'])[0])[:300]}",
            location=location,
            remedy="Give the variables consistent sizes.",
        ) from err


class DimBinder:
    """A binder of a module, which shares functions of equal sizes."""

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.order = callees_first(mod)
        self.functions = {str(gv.name_hint): fn for gv, fn in self.order}
        self.kernels = {
            str(gv.name_hint): (gv, fn)
            for gv, fn in mod.functions.items()
            if isinstance(fn, tirx.PrimFunc)
        }
        self.copies: dict[tuple[str, tuple[tuple[int, str], ...]], ir.GlobalVar] = {}
        self.out: dict[ir.GlobalVar, tirx.PrimFunc] = {}
        self.used_names = {str(gv.name_hint) for gv in mod.functions}
        self.used: set[str] = set()

    def run(self, dims: Mapping[str, int]) -> ir.IRModule:
        """Bind public functions first, so that their callees keep their names."""
        for name, (_, kernel) in self.kernels.items():
            if not is_private(kernel):
                self.kernel(name, {})
        for gv, fn in self.order:
            if not is_private(fn):
                self.bound(str(gv.name_hint), self._by_name(fn, dims))
        for gv, _ in reversed(self.order):
            if str(gv.name_hint) not in self.used:
                self.bound(str(gv.name_hint), {})
        for gv, fn in self.mod.functions.items():
            if str(gv.name_hint) not in (*self.functions, *self.used):
                self.out[gv] = fn
        return ir.IRModule(self.out, attrs=self.mod.attrs, global_infos=self.mod.global_infos)

    @staticmethod
    def _by_name(fn: relax.Function, dims: Mapping[str, int]) -> dict[ir.Expr, ir.Expr]:
        variables = (n for param in fn.params for n in extents(param.ty))
        return {
            n: tirx.IntImm(n.ty.dtype, dims[str(n.name)])
            for n in variables
            if isinstance(n, tirx.Var) and str(n.name) in dims
        }

    def bound(self, name: str, sizes: Mapping[ir.Expr, ir.Expr]) -> ir.GlobalVar:
        """Return the global variable of a function at the given sizes of its variables."""
        fn = self.functions[name]
        order = [n for param in fn.params for n in extents(param.ty)]
        key = tuple((i, str(sizes[n])) for i, n in enumerate(order) if n in sizes)
        if (name, key) not in self.copies:
            with _size_errors(name):
                opened = fn.bind_symbolic_vars(dict(sizes)) if sizes else fn
            opened = _Rewriter(self, name).run(opened)
            ty = relax.FuncType([p.ty for p in opened.params], opened.ret_ty)
            gv = typed(ir.GlobalVar(first_or_new_name(name, self.used, self.used_names)), ty)
            self.out[gv] = opened
            self.copies[name, key] = gv
        return self.copies[name, key]

    def kernel(self, name: str, sizes: Mapping[ir.Expr, int]) -> ir.GlobalVar:
        """Return the global variable of a kernel at the given sizes of its variables."""
        old, kernel = self.kernels[name]
        key = tuple(sorted((handle(variable), str(size)) for variable, size in sizes.items()))
        if (name, key) not in self.copies:
            free = first_or_new_name(name, self.used, self.used_names)
            if sizes:
                kernel = specialise_kernel(kernel, sizes)
            same = not sizes and free == name
            gv = old if same else retyped(ir.GlobalVar(free), kernel.ty)
            self.out[gv] = kernel
            self.copies[name, key] = gv
        return self.copies[name, key]


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    """A rewriter that calls the bound functions and infers types again."""

    def __init__(self, binder: DimBinder, function: str) -> None:
        super().__init__()
        self.binder, self.function = binder, function
        self.location = function

    def run(self, fn: relax.Function) -> relax.Function:
        """Return the function with its calls and types rewritten."""
        self.builder_.begin_scope(fn.params)
        body = self.visit_expr(fn.body)
        self.builder_.end_scope()
        return relax.Function(fn.params, body, None, fn.is_pure, fn.attrs)

    def visit_global_var_(self, gv: ir.GlobalVar) -> ir.Expr:
        """Handle a function that is passed, not called, so that its sizes are unknown."""
        name = str(gv.name_hint)
        if name in self.binder.kernels:
            return self.binder.kernel(name, {})
        return self.binder.bound(name, {}) if name in self.binder.functions else gv

    def visit_call_(self, call: ir.Call) -> ir.Call:
        """Call the callee at the sizes of the arguments."""
        if called_name(call) in _KERNEL_CALLS and isinstance(call.args[0], ir.GlobalVar):
            return self._call_kernel(call)
        op = call.op
        name = str(op.name_hint) if isinstance(op, ir.GlobalVar) else None
        args = [self.visit_expr(arg) for arg in call.args]
        fn = self.binder.functions.get(name) if name is not None else None
        if fn is not None:
            op = self.binder.bound(str(name), self._sizes(fn, args))
        elif name in self.binder.kernels:
            op = self.binder.kernel(str(name), {})
        if op.same_as(call.op) and all(map(_same, args, call.args)):
            return call
        return relax.Call(op, args, call.attrs, call.ty_args)

    def _call_kernel(self, call: ir.Call) -> ir.Call:
        gv, *rest = call.args
        operands, *others = [self.visit_expr(arg) for arg in rest]
        _, kernel = self.binder.kernels[str(gv.name_hint)]
        kernel_call = KernelCall(kernel, call, operands)
        sizes = kernel_call.sizes(self.location)
        args = [self.binder.kernel(str(gv.name_hint), sizes), kernel_call.operands(sizes), *others]
        if all(map(_same, args, call.args)):
            return call
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _sizes(self, fn: relax.Function, args: list[ir.Expr]) -> dict[ir.Expr, ir.Expr]:
        """Return the sizes of a callee's variables, from its arguments."""
        sizes: dict[ir.Expr, ir.Expr] = {}
        for param, arg in zip(fn.params, args, strict=True):
            for declared, extent in zip(extents(param.ty), extents(arg.ty), strict=False):
                if isinstance(declared, tirx.Var) and isinstance(extent, tirx.IntImm):
                    known = sizes.setdefault(declared, extent)
                    if int(known) != int(extent):
                        raise contradiction(self.location, str(declared), int(known), int(extent))
        return sizes

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Bind the variable, of the type that its value has now."""
        var = binding.var
        self.location = location_of(self.function, var, binding.value)
        with _size_errors(self.location):
            value = self.builder_.normalize(self.visit_expr(binding.value))
        if not tvm_ffi.structural_equal(var.ty, value.ty):
            var = type(var)(str(var.name), value.ty)
            self.set_var_remap(binding.var, var)
        self.builder_.emit_normalized(relax.VarBinding(var, value))

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        """Leave out a cast to the type that the value has."""
        value = self.visit_expr(binding.value)
        if tvm_ffi.structural_equal(value.ty, binding.ty):
            var = type(binding.var)(str(binding.var.name), value.ty)
            self.set_var_remap(binding.var, var)
            self.builder_.emit_normalized(relax.VarBinding(var, value))
            return
        self.builder_.emit_normalized(relax.MatchCast(binding.var, value, binding.ty))
