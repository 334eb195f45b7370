# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the specializations of a decided module, and look values up by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import ir, relax

from tvm_distir.core.ir import handle, is_private, relax_functions
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.passes import ModuleRewriter
from tvm_distir.core.plan import plain_name
from tvm_distir.core.propagation import Decision, Instance
from tvm_distir.support import PropagationError, lists_by_key

Caller = tuple[Instance, int]
"""An instance and the number of one of its call nodes."""

_NUMBERED = re.compile(r"(?P<name>.+)#(?P<copy>\d+)$|(?P<whole>.+)(?:\.|\[)(?P<field>\d+)\]?$")


@dataclass(frozen=True)
class Target:
    """A value of a specialization.

    Attributes
    ----------
    inst : Instance
    value : int
        Its number in the instance's graph.
    function : str
        The function in the module given (``layer``).
    specialisation : str
        The function propagation writes for the instance (``layer_1``).
    var : Var
        The variable that names it.
    name : str
        Its name without the function.
    """

    inst: Instance
    value: int
    function: str
    specialisation: str
    var: relax.Var | None
    name: str


class InstanceIndex:
    """An index of a decision's instances, outermost first, with callers and names.

    Parameters
    ----------
    mod : IRModule
        Level 2: the module that was decided.
    decision : Decision
    """

    def __init__(self, mod: ir.IRModule, decision: Decision) -> None:
        self.mod, self.decision = mod, decision
        self.names = _specialisation_names(mod, decision)
        self._instance_of: dict[int, Instance] = {}
        self.callers: dict[int, list[Caller]] = {}
        self.callers_of_graph: dict[str, list[Caller]] = {}
        pending = [inst for _, inst in sorted(decision.entries.items(), reverse=True)]
        while pending:
            inst = pending.pop()
            if inst.number not in self._instance_of:
                self._instance_of[inst.number] = inst
                pending += [kid for _, kid in sorted(inst.kids.items(), reverse=True)]
        self.instances = list(self._instance_of.values())
        for inst in self.instances:
            for k, kid in sorted(inst.kids.items()):
                self.callers.setdefault(kid.number, []).append((inst, k))
                self.callers_of_graph.setdefault(kid.graph.key, []).append((inst, k))

    def name(self, inst: Instance) -> str:
        """Return the name of the function propagation writes for an instance."""
        return self.names[inst.number]

    def specialisations(self, function: str) -> list[Instance]:
        """Return the instances of a function, in the order in which their names are reserved."""
        return [inst for inst in self.instances if inst.graph.name == function]

    def qualified_name(self, inst: Instance, value: int) -> str:
        """Return ``function/variable`` of a value."""
        return f"{self.name(inst)}/{inst.graph.values[value].name}"

    # finding ---------------------------------------------------------------------------

    def find(self, text: str) -> Target:
        """Find a value by name.

        ``text`` is a variable (``lv19``), or one of a function or specialisation
        (``layer_1/lv3``); a parameter is known by its variable and by the model's name.
        ``name#1`` means the second variable of that name, ``name.0`` and ``name[0]`` the first
        field of a tuple.
        Without a function public functions are searched before private ones.

        Raises
        ------
        PropagationError
            DIST0430 for a name that means nothing, DIST0431 for one that is not clear or is no
            tensor.
        """
        known = {self.name(inst): inst for inst in self.instances}
        prefix, slash, rest = text.partition("/")
        if slash and rest and prefix in known:
            targets = self._in_instance(known[prefix], rest)
            if targets is None:
                raise self._unknown(text, [known[prefix]])
            return _only(targets, text)
        for public in (True, False):
            groups: dict[str, list[Target]] = {}
            for inst in self.instances:
                if inst.graph.public == public and inst.graph.name not in groups:
                    hits = self._in_instance(inst, text)
                    if hits is not None:
                        groups[inst.graph.name] = hits
            if len(groups) > 1:
                positions = [f"{function}/{text}" for function in groups]
                raise PropagationError(
                    "DIST0431", f"{len(groups)} functions have a value of this name",
                    location=text, remedy=f"Name one: {', '.join(positions)}.",
                )  # fmt: skip
            if groups:
                return _only(next(iter(groups.values())), text)
        raise self._unknown(text, self.instances)

    def _in_instance(self, inst: Instance, name: str) -> list[Target] | None:
        """Return an instance's values that ``name`` may mean, in order.

        None without such a name.
        """
        exact = self._named(inst, name)
        match = _NUMBERED.match(name)
        if exact or match is None:
            return [t for targets in exact for t in targets] if exact else None
        if match["copy"] is not None:
            copies, number = self._named(inst, match["name"]), int(match["copy"])
            selected = copies[number] if number < len(copies) else []
        else:
            field = int(match["field"])
            selected = [
                targets[field]
                for targets in self._named(inst, match["whole"])[:1]
                if field < len(targets)
            ]
            if not selected:  # a tuple parameter, whose tensors are parameters
                leaves = self._named(inst, f"{match['whole']}_{field}")
                selected = [target for targets in leaves for target in targets]
        return [replace(target, name=name) for target in selected] or None

    def _named(self, inst: Instance, name: str) -> list[list[Target]]:
        """Return the values of each variable of that name."""
        result = []
        for title, var in named_variables(self.mod[inst.graph.name]):
            if name in (title, str(var.name), plain_name(title)):
                values = inst.graph.env.get(handle(var), ())
                function, special = inst.graph.name, self.name(inst)
                result.append([Target(inst, v, function, special, var, name) for v in values])
        return result

    def _unknown(self, text: str, where: Sequence[Instance]) -> PropagationError:
        """Return the error for a name nobody has, with the nearest names."""
        functions = dict.fromkeys(inst.graph.name for inst in where)
        known: list[str] = []
        for inst in where:
            if inst.graph.name in functions:
                del functions[inst.graph.name]
                titles = [title for title, _ in named_variables(self.mod[inst.graph.name])]
                known += [f"{self.name(inst)}/{title}" for title in dict.fromkeys(titles)]
        short = text.rpartition("/")[2]
        by_end = lists_by_key((name.partition("/")[2], name) for name in known)
        close = difflib.get_close_matches(short, sorted(by_end), n=3, cutoff=0.5)
        near = [name for end in close for name in by_end[end]][:5]
        if near:
            remedy = f"Did you mean {' or '.join(near)}?"
        else:
            shown = ", ".join(known[:8])
            remedy = f"There are {len(known)}: {shown}{', ...' if len(known) > 8 else ''}."
        return PropagationError("DIST0430", "no value has this name", location=text, remedy=remedy)


def _only(targets: list[Target], text: str) -> Target:
    """Return the only target; raise DIST0431 for several variables of a name."""
    tensors = [t for t in targets if t.value >= 0]
    if not tensors:
        raise PropagationError(
            "DIST0431", "this is a constant or not a tensor",
            location=text, remedy="Name a tensor: a variable or a parameter.",
        )  # fmt: skip
    variables = {str(t.var.name) for t in targets if t.var is not None}
    same = all(t.var is not None and t.var.same_as(targets[0].var) for t in targets)
    if len(targets) > 1 and same:
        raise PropagationError(
            "DIST0431", f"a tuple of {len(targets)} tensors",
            location=text, remedy=f"Name a field: {text}.0 to {text}.{len(targets) - 1}.",
        )  # fmt: skip
    if len({t.value for t in targets}) > 1:
        problem = f"{len(targets)} variables are called {' or '.join(sorted(variables))}"
        remedy = f"Name one: {text}#0 to {text}#{len(targets) - 1}, in program order."
        raise PropagationError("DIST0431", problem, location=text, remedy=remedy)
    return tensors[0]


def named_variables(fn: relax.Function) -> Iterator[tuple[str, relax.Var]]:
    """Yield name (as in the model) and variable of every parameter and binding, in order."""
    yield from zip(param_names(fn), fn.params)
    for block in fn.body.blocks:
        for binding in block.bindings:
            yield str(binding.var.name), binding.var


def _specialisation_names(mod: ir.IRModule, decision: Decision) -> dict[int, str]:
    """Return the name of every instance, by its number: as :class:`ModuleRewriter` writes them."""
    rewriter = ModuleRewriter(mod, decision)
    entries: dict[int, str] = {}
    for gv, fn in relax_functions(mod):
        name = str(gv.name_hint)
        if not is_private(fn) and name in decision.entries:
            rewriter.name_kids(decision.entries[name])
            entries[decision.entries[name].number] = name
    return {**rewriter.names, **entries}
