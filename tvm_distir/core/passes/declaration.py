# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``module_pass`` turns a factory of rewrites into a factory of passes with declared levels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

import tvm
from tvm import ir

from tvm_distir.core.analysis.names import LEVELS
from tvm_distir.core.analysis.nesting import too_deep
from tvm_distir.core.rewriting.collector import gc_paused
from tvm_distir.support import REQUIRED, Option, UsageError, nearest, options_of, summary

Rewrite = Callable[[ir.IRModule], ir.IRModule]
"""A rewrite of a module, which does not modify its argument."""

Options = ParamSpec("Options")
_PASS = "__tvm_distir_pass__"


@dataclass(frozen=True)
class PassInfo:
    """The declaration of a kind of pass.

    Attributes
    ----------
    factory : callable
        Takes the options, gives a ``tvm.transform.Pass``.
    takes : tuple of str
        Levels (:data:`tvm_distir.core.analysis.names.LEVELS`) of modules it can be run on.
    gives : str or None
        Level of the result. None: that of the module it gets.
    """

    factory: Callable[..., Any]
    takes: tuple[str, ...]
    gives: str | None

    @property
    def summary(self) -> str:
        """Return the first sentence of the factory's docstring."""
        return summary(self.factory)

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """Return the options that can be given in text, by name."""
        return options_of(self.factory)

    @functools.cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.factory).parameters

    @property
    def levels(self) -> str:
        """Return the levels as text, such as ``distributed -> legalized``."""
        before = " | ".join(self.takes)
        return before if self.gives is None else f"{before} -> {self.gives}"

    def accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the factory has options for."""
        return {key: value for key, value in arguments.items() if key in self._parameters}

    def make(self, name: str, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        """Make a pass.

        Parameters
        ----------
        name : str
            The name of the pass, for messages.
        options : mapping of str to plain value
            The options, as :class:`.spec.PassSpec` holds them.
        arguments : mapping of str to value
            The values of options that ``options`` does not set; those that the pass lacks are
            ignored.

        Raises
        ------
        UsageError
            DIST0151 where an option is missing that has no default.
        """
        values = self.accepted(arguments)
        values.update({key: self.options[key].make(value) for key, value in options.items()})
        for key, parameter in self._parameters.items():
            if parameter.default is REQUIRED and key not in values:
                problem = f'the option "{key}" of {name} is missing'
                flag = f", or add --{key}" if key in ("plan", "system") else ""
                remedy = f"Write {name}{{{key}=...}}{flag}."
                raise UsageError("DIST0151", problem, location=f'pass "{name}"', remedy=remedy)
        return self.factory(**values)


def module_pass(
    takes: str | Sequence[str], gives: str | None = None
) -> Callable[[Callable[Options, Rewrite]], Callable[Options, Any]]:
    """Turn a factory of rewrites into a factory of ``tvm.transform.Pass``.

    The parameters of the factory are the options of the pass; their types, defaults and what the
    docstring says of them are shown by ``tvm-distir opt --help-passes`` and read from its text.

    Parameters
    ----------
    takes : str or sequence of str
        Level or levels (:data:`~.names.LEVELS`) of the modules it can be run on.
    gives : str, optional
        Level of the result. None: that of the module it gets.

    Raises
    ------
    UsageError
        DIST0152 for a name that is no level.

    Examples
    --------
    >>> @module_pass("local")
    ... def NoChange(times: int = 1):
    ...     return lambda mod: mod
    >>> NoChange(2).info.name
    'tvm_distir.NoChange'
    """
    levels = (takes,) if isinstance(takes, str) else tuple(takes)
    for level in (*levels, *([] if gives is None else [gives])):
        if level not in LEVELS.values():
            remedy = nearest(level, LEVELS.values())
            raise UsageError(
                "DIST0152", f'no level "{level}"', location="module_pass", remedy=remedy
            )

    def declare(factory: Callable[Options, Rewrite]) -> Callable[Options, Any]:
        title = f"{factory.__module__.partition('.')[0]}.{factory.__name__}"

        @functools.wraps(factory)
        def make(*args: Options.args, **options: Options.kwargs) -> Any:
            rewrite = factory(*args, **options)

            @tvm.transform.module_pass(opt_level=0, name=title)  # type: ignore[untyped-decorator]
            def run(mod: ir.IRModule, _: Any) -> ir.IRModule:
                with gc_paused():
                    try:
                        return rewrite(mod)
                    except RecursionError as error:
                        raise too_deep(mod) from error

            return run

        parameters_of = inspect.signature(factory)
        setattr(
            make, "__signature__", parameters_of.replace(return_annotation="tvm.transform.Pass")
        )
        setattr(make, _PASS, PassInfo(make, levels, gives))
        return make

    return declare


def info_of(factory: Any) -> PassInfo | None:
    """Return the declaration of a factory; None where :func:`module_pass` did not make it."""
    info = getattr(factory, _PASS, None)
    return info if isinstance(info, PassInfo) else None
