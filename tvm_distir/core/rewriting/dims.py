# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the symbolic dims of a module and bind them to sizes.

Before::

    def layer(x: R.Tensor(("n", 8))):               # private
        ...
    def main(x: R.Tensor(("seq", 8))):
        y = cls.layer(x)

After ``bind_dims(mod, {"seq": 128})``::

    def layer(x: R.Tensor((128, 8))):
        ...
    def main(x: R.Tensor((128, 8))):
        y = cls.layer(x)

A private function or a kernel has the sizes of its calls; a function that is called at several
sizes becomes several functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from tvm_distir.core.ir.attributes.keys import IO_ATTR
from tvm_distir.core.ir.extents import extent_value
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.module_argument import check_module
from tvm_distir.core.ir.operators.names import free_name
from tvm_distir.core.ir.types import is_private, relax_functions
from tvm_distir.support import MAX_INT, ModelError, nearest

from .calls import TIR_CALLS, called_name, place_of, typed
from .functions import callees_first, retyped
from .kernel_binding import KernelCall, contradiction, specialise_kernel

_OP = re.compile(r'In ir\.Op\(.*?name="(?:relax\.)?([\w.]+)".*?support_level=\d+\), ')
_SHORT = r"\1: "
"""Pattern of an op at the beginning of a message of TVM, and its name."""
_KERNEL_CALLS = (*TIR_CALLS, "relax.call_tir_inplace")


@dataclass(frozen=True)
class OpenDim:
    """A dim of a parameter of a public function, whose size is a variable.

    Attributes
    ----------
    place : str
        ``function/parameter``.
    dim : int
    name : str
        The name of the variable, to which ``--dim`` and `bind_dims` give a size.
    """

    place: str
    dim: int
    name: str


def open_dims(mod: ir.IRModule) -> list[OpenDim]:
    """Return the symbolic dims of the parameters of public functions, in order, without sums."""
    dims, closed = list[OpenDim](), set[int]()  # by the handles of types
    for gv, fn in relax_functions(mod):
        for param in () if is_private(fn) else fn.params[:]:
            ty = param.ty
            if handle(ty) in closed:
                continue
            before = len(dims)
            for dim, extent in enumerate(_extents(ty)):
                if isinstance(extent, tirx.Var):
                    dims.append(OpenDim(f"{gv.name_hint}/{param.name}", dim, str(extent.name)))
            if len(dims) == before:
                closed.add(handle(ty))
    return dims


def open_variables(fn: relax.Function) -> list[Any]:
    """Return the variables that are dims of a function's parameters, in order."""
    extents = [extent for param in fn.params for extent in _extents(param.ty)]
    return list(dict.fromkeys(n for n in extents if isinstance(n, tirx.Var)))


def dims_remedy(names: list[str], call: str = "td.bind_dims(mod, {})") -> str:
    """Return the remedy for unbound dims; ``call`` is the Python call that takes them."""
    names = list(dict.fromkeys(names))
    options = " ".join(f"--dim {name}=N" for name in names)
    text = ", ".join(f'"{name}": N' for name in names)
    return f"Give the size: {options}; in Python {call.replace('{}', f'{{{text}}}')}."


def check_sizes(dims: Mapping[str, Any], place: str) -> None:
    """Refuse (ModelError DIST0313) sizes that are no positive integers."""
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_INT:
            problem = f"{name}={size!r} is not a size"
            remedy = f"Give a positive integer of at most {MAX_INT}."
            raise ModelError("DIST0313", problem, place=place, remedy=remedy)


def unknown_dim(name: str, known: list[str], place: str) -> ModelError:
    """Return the error (DIST0313) for a size of an unknown dim name."""
    remedy = nearest(name, known) if known else "Remove it: all dims have sizes."
    return ModelError("DIST0313", f'there is no dim "{name}"', place=place, remedy=remedy)


def bind_dims(mod: ir.IRModule, dims: Mapping[str, int]) -> ir.IRModule:
    """Give symbolic dims their sizes, in public functions and in all that they call.

    Parameters
    ----------
    mod : IRModule
        The module, which is not changed; at level 5, where ``dist.io`` then has the sizes, all
        dims get theirs.
    dims : mapping of str to int
        Sizes by the names of variables in the types of public functions' parameters; of whole
        dims at level 5 too.

    Raises
    ------
    ModelError
        DIST0313 for a name that no dim has, for what is no size, or for sizes that contradict
        each other in the module.

    Examples
    --------
    >>> mod = td.from_tvmscript('''
    ... @I.ir_module
    ... class Module:
    ...     @R.function
    ...     def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    ...         return R.nn.relu(x)
    ... ''')
    >>> td.bind_dims(mod, {"n": 8})["main"].params[0].ty
    R.Tensor((8, 4), dtype="float32")
    """
    check_module(mod, "td.bind_dims")
    if not dims:
        return mod
    check_sizes(dims, "module")
    known = list(dict.fromkeys(dim.name for dim in open_dims(mod)))
    for name in dims:
        if name not in known:
            raise unknown_dim(name, known, "module")
    parts = _parts_of_dims(mod)
    for name, count in parts.items():
        if dims.get(name, 0) % count:
            problem = f"{name}={dims[name]} cannot be divided into {count} equal parts"
            remedy = (
                f"Give a multiple of {count}, or bind the dims before the module is distributed."
            )
            raise ModelError("DIST0313", problem, place="module", remedy=remedy)
    bound = _Binder(mod).run({name: size // parts.get(name, 1) for name, size in dims.items()})
    return _with_sizes_of_ports(bound, dims) if parts else bound


def _parts_of_dims(mod: ir.IRModule) -> dict[str, int]:
    """Return the numbers of equal parts of the dims of a module at level 5, by ``dist.io``."""
    return {
        str(name): int(count)
        for _, fn in relax_functions(mod)
        if fn.attrs is not None and IO_ATTR in fn.attrs and "dims" in fn.attrs[IO_ATTR]
        for name, count in fn.attrs[IO_ATTR]["dims"].items()
    }


def _with_sizes_of_ports(mod: ir.IRModule, dims: Mapping[str, int]) -> ir.IRModule:
    """Write sizes into the shapes of ``dist.io``."""
    functions = dict(mod.functions.items())
    for gv, fn in relax_functions(mod):
        if fn.attrs is None or IO_ATTR not in fn.attrs or "dims" not in fn.attrs[IO_ATTR]:
            continue
        io = dict(fn.attrs[IO_ATTR].items())
        left = {name: count for name, count in io.pop("dims").items() if str(name) not in dims}
        if left:
            problem = f"{', '.join(map(str, left))} would stay without a size"
            remedy = "Give the sizes of all dims of a distributed module."
            raise ModelError("DIST0313", problem, place=str(gv.name_hint), remedy=remedy)
        for side in ("inputs", "outputs"):
            ports = [dict(port.items()) for port in io[side]]
            for port in ports:
                port["shape"] = [extent_value(_number(n), dims) for n in port["shape"]]
            io[side] = ports
        functions[gv] = fn.with_attr(IO_ATTR, io)
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _number(extent: Any) -> int | str:
    return str(extent) if isinstance(extent, str) else int(extent)


def _extents(ty: Any) -> Iterator[Any]:
    """Return the dims of all tensors and shapes in a type, in order."""
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _extents(field)
        return
    if isinstance(ty, relax.ShapeType):
        yield from ty.values or ()
        return
    ty = getattr(ty, "tensor_ty", ty)
    shape = getattr(ty, "shape", None)
    if isinstance(shape, relax.ShapeExpr):
        yield from shape.values


def _same(left: Any, other: Any) -> bool:
    return bool(left.same_as(other))


@contextmanager
def _size_errors(place: str) -> Iterator[None]:
    """Convert a type error of TVM in a well-typed module to ModelError DIST0313."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as err:
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        raise ModelError(
            "DIST0313",
            f"sizes contradict each other: {_OP.sub(_SHORT, (lines or ['no message'])[0])[:300]}",
            place=place,
            remedy="Give the variables consistent sizes.",
        ) from err


class _Binder:
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
        self.copies: dict[tuple[str, tuple[tuple[int, str], ...]], Any] = {}
        self.out: dict[Any, Any] = {}
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
    def _by_name(fn: relax.Function, dims: Mapping[str, int]) -> dict[Any, Any]:
        variables = (n for param in fn.params for n in _extents(param.ty))
        return {
            n: tirx.IntImm(n.ty.dtype, dims[str(n.name)])
            for n in variables
            if isinstance(n, tirx.Var) and str(n.name) in dims
        }

    def bound(self, name: str, sizes: Mapping[Any, Any]) -> Any:
        """Return the global variable of a function at the given sizes of its variables."""
        fn = self.functions[name]
        order = [n for param in fn.params for n in _extents(param.ty)]
        key = tuple((i, str(sizes[n])) for i, n in enumerate(order) if n in sizes)
        if (name, key) not in self.copies:
            with _size_errors(name):
                opened = fn.bind_symbolic_vars(dict(sizes)) if sizes else fn
            opened = _Rewriter(self, name).run(opened)
            ty = relax.FuncType([p.ty for p in opened.params], opened.ret_ty)
            gv = typed(ir.GlobalVar(self._fresh(name)), ty)
            self.out[gv] = opened
            self.copies[name, key] = gv
        return self.copies[name, key]

    def kernel(self, name: str, sizes: Mapping[Any, int]) -> Any:
        """Return the global variable of a kernel at the given sizes of its variables."""
        old, kernel = self.kernels[name]
        key = tuple(sorted((handle(variable), str(size)) for variable, size in sizes.items()))
        if (name, key) not in self.copies:
            free = self._fresh(name)
            if sizes:
                kernel = specialise_kernel(kernel, sizes)
            same = not sizes and free == name
            gv = old if same else retyped(ir.GlobalVar(free), kernel.ty)
            self.out[gv] = kernel
            self.copies[name, key] = gv
        return self.copies[name, key]

    def _fresh(self, name: str) -> str:
        free = free_name(name, self.used | self.used_names) if name in self.used else name
        self.used.add(free)
        return free


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]
    """A rewriter that calls the bound functions and infers types again."""

    def __init__(self, binder: _Binder, function: str) -> None:
        super().__init__()
        self.binder, self.function = binder, function
        self.place = function

    def run(self, fn: relax.Function) -> relax.Function:
        """Return the function with its calls and types rewritten."""
        self.builder_.begin_scope(fn.params)
        body = self.visit_expr(fn.body)
        self.builder_.end_scope()
        return relax.Function(fn.params, body, None, fn.is_pure, fn.attrs)

    def visit_global_var_(self, gv: Any) -> Any:
        """Handle a function that is passed, not called, so that its sizes are unknown."""
        name = str(gv.name_hint)
        if name in self.binder.kernels:
            return self.binder.kernel(name, {})
        return self.binder.bound(name, {}) if name in self.binder.functions else gv

    def visit_call_(self, call: Any) -> Any:
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

    def _call_kernel(self, call: Any) -> Any:
        gv, *rest = call.args
        operands, *others = [self.visit_expr(arg) for arg in rest]
        _, kernel = self.binder.kernels[str(gv.name_hint)]
        kernel_call = KernelCall(kernel, call, operands)
        sizes = kernel_call.sizes(self.place)
        args = [self.binder.kernel(str(gv.name_hint), sizes), kernel_call.operands(sizes), *others]
        if all(map(_same, args, call.args)):
            return call
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _sizes(self, fn: relax.Function, args: list[Any]) -> dict[Any, Any]:
        """Return the sizes of a callee's variables, from its arguments."""
        sizes: dict[Any, Any] = {}
        for param, arg in zip(fn.params, args, strict=True):
            for declared, extent in zip(_extents(param.ty), _extents(arg.ty), strict=False):
                if isinstance(declared, tirx.Var) and isinstance(extent, tirx.IntImm):
                    known = sizes.setdefault(declared, extent)
                    if int(known) != int(extent):
                        raise contradiction(self.place, str(declared), int(known), int(extent))
        return sizes

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Bind the variable, of the type that its value has now."""
        var = binding.var
        self.place = place_of(self.function, var, binding.value)
        with _size_errors(self.place):
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
