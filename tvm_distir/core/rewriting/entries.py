# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Select an entry point of a module, and reduce the module to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvm import ir, relax

from tvm_distir.core.ir.types import is_private, relax_functions
from tvm_distir.support import ModelError, nearest, reachable

from .functions import inner_made_private

MAIN = "main"


def entry_family(name: str) -> str:
    """Return the original name of an entry function, such as ``main`` of ``main_mesh1``."""
    head, mesh, numbers = name.rpartition("_mesh")
    return head if mesh and all(n.isdigit() for n in numbers.split("_")) else name


def public_functions(mod: ir.IRModule) -> list[str]:
    """Return the names of the Relax functions that can be called from outside, sorted."""
    return [str(gv.name_hint) for gv, fn in relax_functions(mod) if not is_private(fn)]


def names_reached(functions: Mapping[str, ir.BaseFunc], roots: Iterable[str]) -> set[str]:
    """Return the names of some functions and of all that these mention, kernels included."""

    def mentioned(name: str) -> list[str]:
        fn = functions[name]
        used = relax.analysis.all_global_vars(fn) if isinstance(fn, relax.Function) else ()
        return [str(gv.name_hint) for gv in used]

    return set(reachable(roots, mentioned))


def reached_from(mod: ir.IRModule, names: Iterable[str]) -> dict[ir.GlobalVar, ir.BaseFunc]:
    """Return the functions of these names and all that they mention, ordered by name."""
    variables = {str(gv.name_hint): gv for gv in mod.functions}
    reached = names_reached({name: mod[gv] for name, gv in variables.items()}, names)
    return {variables[name]: mod[variables[name]] for name in sorted(reached)}


def entry_of(mod: ir.IRModule) -> str:
    """Return the name of the entry function: ``main``, or the only public function.

    Raises
    ------
    ModelError
        DIST0341 where there is none, or several of which none is ``main``.
    """
    names = public_functions(inner_made_private(mod))
    if MAIN in names:
        return MAIN
    if len(names) == 1:
        return names[0]
    raise no_single_entry(names)


def no_single_entry(names: Iterable[str]) -> ModelError:
    """Return the error DIST0341, which lists the functions to choose from."""
    candidates = sorted(names)
    problem = f'the module has no function "{MAIN}"' + (
        f", and several others: {', '.join(candidates)}" if candidates else ", nor any public one"
    )
    remedy = (
        "Choose one with --entry NAME (in Python, entry=)."
        if candidates
        else f"Rename the entry function to {MAIN}."
    )
    return ModelError("DIST0341", problem, location="module", remedy=remedy)


def keep_entry(mod: ir.IRModule, entry: str | None) -> ir.IRModule:
    """Return the module with a single entry point and the functions that it calls.

    Parameters
    ----------
    mod : IRModule
        A module at any level; a lowered module may have the entry in parts, ``decode_mesh0``.
    entry : str or None
        Name of a public function, or of a function that other ones call. None: the module.

    Raises
    ------
    ModelError
        DIST0341 naming the functions there are.
    """
    if entry is None:
        return mod
    public = public_functions(mod)
    entries = {name for name in public if entry in (name, entry_family(name))}
    if not entries:
        problem = f'the module has no public function "{entry}"'
        remedy = f"{nearest(entry, public)} It has: {', '.join(public) or 'none'}."
        raise ModelError("DIST0341", problem, location="entry", remedy=remedy)
    functions = reached_from(mod, sorted(entries))
    kept_mod = ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return inner_made_private(kept_mod)
