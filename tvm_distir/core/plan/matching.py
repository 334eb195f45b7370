# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Match the rules of a plan with the tensors of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir
from tvm.ir import Type
from tvm.relax import Binding, Function

from tvm_distir.core.ir.attributes.keys import FIELDS_ATTR
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.ir.placement import R
from tvm_distir.core.ir.types import is_object, is_private, relax_functions, tensor_type
from tvm_distir.core.ops.packed import CACHE_HEADS, creates_cache
from tvm_distir.core.rewriting.functions import callee_of
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.tuple_parameters import field_path
from tvm_distir.support import Faults, PlanError, lists_by_key, nearest

from .conflicts import give
from .fitting import check_fit
from .name_patterns import MAIN, is_pattern, match_name, plain_name
from .plan import Plan
from .schema import PlanRule, faults_of_plan

Check = Callable[[Any, str], None]
"""A check that collects the faults of a rule for a tensor type, at a place."""


@dataclass
class FunctionTargets:
    """The rules that apply to a function.

    Attributes
    ----------
    params : dict of int to PlanRule
        The rule of each parameter, by its position.
    values : dict of Var to PlanRule
        The rule of each value, by the variable as bound.
    args : dict of Var to (dict of int to PlanRule)
        The rules of arguments, by the variable that a call is bound to, then by the position of the
        argument.
    caches : dict of Var to PlanRule
        The rule of each created cache (:func:`.packed.creates_cache`), by the variable as bound.
    positions : dict of str to list of int
        Positions of the parameters by name, so that thousands of exact names are quick to find.
    bound : dict of str to list of Var
        Bound variables by name, for the same reason.
    calls : dict of str to list of Binding
        Bindings of calls of functions, by the function's name, for the same reason.
    """

    params: dict[int, PlanRule] = field(default_factory=dict)
    values: dict[Any, PlanRule] = field(default_factory=dict)
    args: dict[Any, dict[int, PlanRule]] = field(default_factory=dict)
    caches: dict[Any, PlanRule] = field(default_factory=dict)
    positions: dict[str, list[int]] = field(default_factory=dict, repr=False)
    bound: dict[str, list[Any]] = field(default_factory=dict, repr=False)
    calls: dict[str, list[Any]] | None = field(default=None, repr=False)


def resolve(plan: Plan, mod: ir.IRModule) -> dict[str, FunctionTargets]:
    """Match each rule with tensors; of several rules the most specific applies.

    A rule that names a tensor refines the patterns that match it too. Rules of the same kind must
    agree where both give a label; what a rule leaves open another rule may give.

    Parameters
    ----------
    plan : Plan
    mod : IRModule

    Returns
    -------
    targets : dict of str to FunctionTargets
        The matched tensors by function name, for the functions that rules look into.

    Raises
    ------
    PlanError, MeshError
        All faults at once (``error.violations``; DIST0228 where they differ).
    PlanError
        DIST0223 a rule matches nothing, DIST0224 it names something that is no tensor or is
        not clear, DIST0225 an unknown function, DIST0226 a dim that several axes cannot share,
        DIST0239 rules contradict each other.
    MeshError
        DIST0204, DIST0205: the placement does not fit the tensor.
    """
    functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
    targets: dict[str, FunctionTargets] = {}
    faults = faults_of_plan()
    for number, rule in enumerate(plan.rules):
        with faults.gathered():
            _resolve_rule(plan, rule, f"rules/{number} ({rule.title})", functions, targets, faults)
    faults.raise_all()
    return targets


def _resolve_rule(
    plan: Plan,
    rule: PlanRule,
    location: str,
    functions: dict[str, Function],
    targets: dict[str, FunctionTargets],
    faults: Faults,
) -> None:
    names = _functions_to_search(rule, functions, location)
    finder = {"param": _match_params, "value": _match_values, "call": _match_calls}[rule.kind]
    mesh = plan.mesh(rule.mesh, location)

    def check(ty: Type, where: str) -> None:
        with faults.gathered():
            check_fit(rule, mesh, ty, where)

    matches = [
        finder(rule, check, functions[name], name, targets.setdefault(name, FunctionTargets()))
        for name in names
    ]
    if not any(matches):
        problem = f"the rule matches nothing in {' or '.join(names)}"
        remedy = _what_there_is(rule, [functions[name] for name in names], functions)
        raise PlanError("DIST0223", problem, location=location, remedy=remedy)


def _functions_to_search(
    rule: PlanRule, functions: dict[str, Function], location: str
) -> list[str]:
    if rule.kind == "call" and rule.name not in functions:
        private = [name for name, fn in functions.items() if is_private(fn)]
        problem = f'the module has no function "{rule.name}"'
        raise PlanError("DIST0225", problem, location=location, remedy=nearest(rule.name, private))
    if rule.function is not None:
        if rule.function not in functions:
            problem = f'the module has no function "{rule.function}"'
            remedy = nearest(rule.function, functions)
            raise PlanError("DIST0225", problem, location=location, remedy=remedy)
        return [rule.function]
    if MAIN in functions:
        return [MAIN]
    public = sorted(name for name, fn in functions.items() if not is_private(fn))
    if not public:
        remedy = 'Give the entry a "global_symbol", or name a function in the rule.'
        raise PlanError(
            "DIST0225", "the module has no public function", location=location, remedy=remedy
        )
    return public


def _what_there_is(
    rule: PlanRule, searched: Sequence[Function], functions: dict[str, Function]
) -> str:
    if rule.kind == "param":
        paths = [path for fn in searched for path in _field_paths(fn)]
        fields = [path for path in paths if path.startswith(f"{rule.name}.")]
        if fields:
            return f"It is a tuple: name its tensors, {', '.join(fields[:3])}, or {rule.name}.*."
    params = [name for fn in searched for name in param_names(fn)]
    bound = [str(b.var.name) for fn in searched for b in all_bindings(fn.body)]
    for kind, names, others in (("param", params, bound), ("value", bound, params)):
        if rule.kind == kind:
            other = "value" if kind == "param" else "param"
            if any(match_name(rule.name, name) for name in others):
                return f'It is a {other}: write {{"{other}": "{rule.name}"}}.'
            return nearest(rule.name, names[:40])
    calls = sum(len(_calls_of(fn).get(rule.name, ())) for fn in searched)
    arity = len(functions[rule.name].params)
    return f"It is called {calls} times there, with {arity} arguments; both count from 0."


def _match_params(
    rule: PlanRule, check: Check, fn: Function, name: str, targets: FunctionTargets
) -> bool:
    if not targets.positions:
        names = param_names(fn)
        for key in (names, [plain_name(param_name) for param_name in names]):
            by_name = lists_by_key((param_name, i) for i, param_name in enumerate(key))
            targets.positions = {**by_name, **targets.positions}
    if is_pattern(rule.name):
        named = [
            i for i, param_name in enumerate(param_names(fn)) if match_name(rule.name, param_name)
        ]
    else:
        positions = targets.positions
        named = positions.get(rule.name) or positions.get(plain_name(rule.name)) or []
    named = named or _fields_named(fn, rule.name)
    tensors = [i for i in named if tensor_type(fn.params[i].ty) is not None]
    if named and not tensors:
        raise _no_tensor(rule, f"{name}/{fn.params[named[0]].name}", fn.params[named[0]].ty)
    for i in tensors:
        check(fn.params[i].ty, f"{name}/{fn.params[i].name}")
        give(targets.params, i, rule, f"{name}/{fn.params[i].name}")
    return bool(tensors)


def _fields_named(fn: Function, name: str) -> list[int]:
    """Return the positions of what a name such as ``packed_params[3]`` denotes, or a pattern."""
    path = field_path(name)
    return [i for i, field in enumerate(_field_paths(fn)) if field and match_name(path, field)]


def _field_paths(fn: Function) -> list[str]:
    """Return the path of each parameter that was a field of a tuple; of others it is empty."""
    fields = fn.attrs[FIELDS_ATTR][:] if fn.attrs and FIELDS_ATTR in fn.attrs else []
    return [str(field) for field in fields]


def _match_values(
    rule: PlanRule, check: Check, fn: Function, name: str, targets: FunctionTargets
) -> bool:
    if not targets.bound:
        for binding in all_bindings(fn.body):
            targets.bound.setdefault(plain_name(str(binding.var.name)), []).append(binding.var)
    if is_pattern(rule.name):
        named = [b.var for b in all_bindings(fn.body) if match_name(rule.name, str(b.var.name))]
    else:
        named = targets.bound.get(plain_name(rule.name), [])
    tensors = [var for var in named if tensor_type(var.ty) is not None]
    caches = [] if tensors else _created_caches(fn, named)
    for var in caches:
        if any(label not in (None, R, CACHE_HEADS) for label in rule.placement):
            raise _no_tensor(rule, f"{name}/{var.name}", var.ty, "Divide a cache by heads: S[1].")
        give(targets.caches, var, rule, f"{name}/{var.name}")
    if caches:
        return True
    if named and not tensors:
        raise _no_tensor(rule, f"{name}/{named[0].name}", named[0].ty)
    if len(tensors) > 1 and not is_pattern(rule.name):
        problem = f'{len(tensors)} variables are called "{rule.name}"'
        remedy = f'Rename them, or select all of them with the pattern "{rule.name}*".'
        raise PlanError("DIST0224", problem, location=f"{name} ({rule.title})", remedy=remedy)
    for var in tensors:
        check(var.ty, f"{name}/{var.name}")
        give(targets.values, var, rule, f"{name}/{var.name}")
    return bool(tensors)


def _created_caches(fn: Function, named: Sequence[Any]) -> list[Any]:
    """Return the variables, of these, to which a created cache is bound."""
    objects = {var for var in named if is_object(var.ty)}
    if not objects:
        return []
    return [b.var for b in all_bindings(fn.body) if b.var in objects and creates_cache(b.value)]


def _calls_of(fn: Function) -> dict[str, list[Binding]]:
    """Return the bindings of calls of functions, by the function's name."""
    called = ((callee_of(binding.value), binding) for binding in all_bindings(fn.body))
    return lists_by_key((str(gv.name_hint), binding) for gv, binding in called if gv is not None)


def _match_calls(
    rule: PlanRule, check: Check, fn: Function, name: str, targets: FunctionTargets
) -> bool:
    matched = False
    if targets.calls is None:
        targets.calls = _calls_of(fn)
    for number, binding in enumerate(targets.calls.get(rule.name, ())):
        arg = rule.arg
        if rule.index not in (None, number) or arg is None or arg >= len(binding.value.args):
            continue
        location = f"{name}/{binding.var.name} ({rule.name}, argument {arg})"
        ty = binding.value.args[arg].ty
        if tensor_type(ty) is None:
            raise _no_tensor(rule, location, ty)
        check(ty, location)
        give(targets.args.setdefault(binding.var, {}), arg, rule, location)
        matched = True
    return matched


def _no_tensor(
    rule: PlanRule, location: str, ty: Type, remedy: str = "Name the tensors that it contains."
) -> PlanError:
    problem = f"the rule {rule.title} selects a value of type {ty}, which is not a tensor"
    return PlanError("DIST0224", problem, location=location, remedy=remedy)
