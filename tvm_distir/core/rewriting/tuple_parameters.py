# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Open the tuple parameters of public functions, so that each tensor is a parameter.

Before::

    def main(x: R.Tensor((8, 4)), packed_params: R.Tuple(R.Tensor((6, 4)), R.Tensor((4, 6)))):
        up_proj_weight1 = packed_params[0]
        down_proj_weight1 = packed_params[1]

After::

    def main(x: R.Tensor((8, 4)), up_proj_weight: R.Tensor((6, 4)),
             down_proj_weight: R.Tensor((4, 6))):
        ...

MLC-LLM and ``relax.nn`` export the weights of a model in this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes.keys import (
    FIELDS_ATTR,
    INPUTS_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    STAGE_KIND_ATTR,
    TRAINING_ATTR,
)
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.ir.types import is_private, relax_functions

from .calls import tuple_of, typed
from .functions import inner_made_private, retyped
from .scopes import all_bindings
from .substitute import substitute, variables

_GENERATED = re.compile(r"(lv|gv|v|ret|tuple|item|get_item|var)?_?\d*")
"""Names that a compiler makes up: they say nothing about a field."""
_NUMBER = re.compile(r"\d*$")

FieldNames = Mapping[tuple[str, int], str]
"""Names of the fields of tuple parameters, by the parameter's name and the field's number."""


def open_tuples(mod: ir.IRModule) -> ir.IRModule:
    """Replace every tuple parameter of a public function by its tensors.

    A field is named after the variable to which the module binds it, without the number by which
    entry points tell their variables apart; else as ``cache_0``, ``cache_1_0``. All entry points
    give a field of the parameter of one name the same name. The function attribute ``dist.fields``
    has the field that each parameter was, as ``packed_params.3``.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1 or 2, which is not changed. Steps of training and their stages have
        notes on the positions of parameters, and keep their tuples.

    Returns
    -------
    IRModule
        The module itself where there is nothing to open.
    """
    if not any(_opens(fn) for _, fn in relax_functions(mod)):
        return mod
    mod = inner_made_private(mod)
    opened = {gv: fn for gv, fn in relax_functions(mod) if _opens(fn)}
    names = _field_names(list(opened.values()))
    functions: dict[Any, Any] = {}
    for gv, fn in mod.functions.items():
        if gv in opened:
            new = _Opener(fn, names).run()
            functions[retyped(gv, new.ty)] = new
        else:
            functions[gv] = fn
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def field_path(name: str) -> str:
    """Return the form in ``dist.fields`` of a name such as ``packed_params[3]``."""
    return re.sub(r"\[(\d+)\]", r".\1", name)


def _opens(fn: relax.Function) -> bool:
    """Return whether a function has tuple parameters to be opened."""
    attrs: Any = fn.attrs or {}
    if is_private(fn) or TRAINING_ATTR in attrs or STAGE_KIND_ATTR in attrs:
        return False
    return any(type(param.ty) is relax.TupleType for param in fn.params[:])


def _field_names(functions: list[relax.Function]) -> dict[tuple[str, int], str]:
    """Return the names of fields by the reads of all entry points."""
    names: dict[tuple[str, int], str] = {}
    for fn in functions:
        for param in fn.params[:]:
            if type(param.ty) is not relax.TupleType:
                continue
            title, reads = str(param.name), dict[int, str]()
            for binding in all_bindings(fn.body):
                value: Any = getattr(binding, "value", None)
                if type(value) is relax.TupleGetItem and value.tuple_value.same_as(param):
                    reads.setdefault(int(value.index), str(binding.var.name))
            field_names = {i: name for i, name in reads.items() if not name.startswith(title)}
            for index, name in _without_number(field_names).items():
                names.setdefault((title, index), name)
    counts: dict[tuple[str, str], int] = {}
    for (title, _), name in names.items():
        counts[title, name] = counts.get((title, name), 0) + 1
    return {key: name for key, name in names.items() if counts[key[0], name] == 1}


def _without_number(reads: Mapping[int, str]) -> dict[int, str]:
    """Return the names of reads without a number that all of several end with."""
    named = {i: name for i, name in reads.items() if not _GENERATED.fullmatch(name)}
    tails = {_NUMBER.search(name)[0] for name in named.values()}  # type: ignore[index]
    if len(named) > 1 and len(tails) == 1 and (tail := tails.pop()):
        return {i: name.removesuffix(tail) for i, name in named.items()}
    return named


class _Opener:
    """Opens the tuple parameters of a function."""

    def __init__(self, fn: relax.Function, names: FieldNames) -> None:
        self.fn, self.names = fn, names
        self.params: list[relax.Var] = []
        self.titles: list[str] = []
        self.fields: list[str] = []
        self.env: dict[ir.Expr, ir.Expr] = {}
        self.leaves: dict[str, list[str]] = {}  # the new names, by those before
        plain = [p for p in fn.params[:] if type(p.ty) is not relax.TupleType]
        self.used_names = {str(param.name) for param in plain}

    def run(self) -> relax.Function:
        """Return the function with opened parameters."""
        fn = self.fn
        first = [0]
        for param, title in zip(fn.params[:], param_names(fn), strict=True):
            if type(param.ty) is relax.TupleType:
                self.env[param] = self._opened(param.ty, str(param.name), title, ())
            else:
                self._add(param, title, "")
            self.leaves[title] = self.titles[first[-1] :]
            first.append(len(self.params))
        blocks = []
        for block in fn.body.blocks[:]:
            bindings = [new for old in block.bindings[:] for new in self._binding(old, block)]
            if bindings:
                blocks.append(type(block)(bindings))
        body = typed(relax.SeqExpr(blocks, substitute(fn.body.body, self.env)), fn.body.ty)
        attrs = self._attrs(first)
        return relax.Function(self.params, body, fn.ret_ty, bool(fn.is_pure), attrs)

    def _add(self, var: relax.Var, title: str, field: str) -> None:
        self.params.append(var)
        self.titles.append(title)
        self.fields.append(field)

    def _opened(self, ty: ir.Type, name: str, title: str, path: tuple[int, ...]) -> Any:
        """Return the parameter of a field, or the tuple of those of its fields."""
        if type(ty) is relax.TupleType:
            fields = enumerate(ty.fields[:])
            return tuple_of([self._opened(t, name, title, (*path, i)) for i, t in fields])
        numbers = "".join(f"_{i}" for i in path)
        cached = self.names.get((name, path[0])) if len(path) == 1 else None
        free = cached if cached and cached not in self.used_names else name + numbers
        while free in self.used_names:
            free += "_"
        self.used_names.add(free)
        var = relax.Var(free, ty)
        self._add(var, cached or title + numbers, name + "".join(f".{i}" for i in path))
        return var

    def _binding(self, binding: relax.Binding, block: relax.BindingBlock) -> Iterator[Any]:
        """Yield the bindings that replace a binding: none for a read of a field."""
        var, value = binding.var, binding.value
        if type(binding) is not relax.MatchCast:
            source = value.tuple_value if type(value) is relax.TupleGetItem else value
            full = self.env.get(source) if isinstance(source, ir.Var) else None
            if full is not None:
                self.env[var] = full if source is value else full.fields[int(value.index)]
                return
        env = self.env
        if type(value) is relax.If:  # its branches may read fields: they get the tuple itself
            env = dict(env)
            for used in dict.fromkeys(variables(value)):
                if type(env.get(used)) is relax.Tuple:
                    kind = relax.DataflowVar if type(block) is relax.DataflowBlock else relax.Var
                    env[used] = kind(str(used.name), used.ty)
                    yield relax.VarBinding(env[used], self.env[used])
        new = substitute(value, env)
        if new is value:
            yield binding
        elif type(binding) is relax.MatchCast:
            yield relax.MatchCast(var, new, binding.ty)
        else:
            yield relax.VarBinding(var, new)

    def _attrs(self, first: list[int]) -> Any:
        """Return the attributes, with names and numbers of the new parameters."""
        attrs: dict[str, Any] = dict(self.fn.attrs or {})
        if NUM_INPUT_ATTR in attrs:
            attrs[NUM_INPUT_ATTR] = first[min(int(attrs[NUM_INPUT_ATTR]), len(first) - 1)]
        if INPUTS_ATTR in attrs:
            names = [str(name) for name in attrs[INPUTS_ATTR]]
            attrs[INPUTS_ATTR] = [x for name in names for x in self.leaves.get(name, [name])]
        if any(str(p.name) != title for p, title in zip(self.params, self.titles, strict=True)):
            attrs[PARAM_NAMES_ATTR] = self.titles
        attrs[FIELDS_ATTR] = self.fields
        return ir.make_node("ir.DictAttrs", **attrs)
