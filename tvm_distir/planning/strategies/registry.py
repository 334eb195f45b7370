# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register strategies by name, and parse the text form of the command line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec

from tvm_distir.core.ir import check_module
from tvm_distir.core.plan import Plan
from tvm_distir.core.rewriting import canonical, fold_shapes, gc_paused, open_tuples
from tvm_distir.support import (
    Option,
    PlanError,
    Registry,
    Token,
    Unreadable,
    as_term,
    nearest,
    options_of,
    shipped_data,
    shortened,
    summary,
)

from .training_parts import with_updates

Strategy = Callable[..., Plan]
Arguments = ParamSpec("Arguments")

BESIDE, BEFORE, OTHERS = "beside", "before", "others"
"""Parameters of a strategy that take the plan of those made before it: of all strategies without
such a parameter; of these and those that have ``beside``; and of all but those that have ``others``
too."""

SYSTEM = "system"
"""Parameter of a strategy that takes the system whose times decide, or None."""

_HERE = __name__.rpartition(".")[0]
_MARK = "__tvm_distir_strategy__"

STRATEGIES = Registry(
    "tvm_distir.strategies",
    {
        name: f"{_HERE}.{file}:{name}"
        for name, file in shipped_data(__file__, "strategies.json").items()
    },
)
"""The strategies of this package, each with its file. A file is not named as its function is: as an
attribute of the package it would take the function's place."""


WORDS: Mapping[str, list[str]] = shipped_data(__file__, "strategy_words.json")
"""Strategies by words of other libraries and papers that name them; the usual meaning first."""


@dataclass(frozen=True)
class StrategySpec:
    """One strategy with its options.

    Parameters
    ----------
    name : str
        The name, as :func:`strategy_names` lists it.
    options : mapping of str to value
        Keyword options of the strategy.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StrategyInfo:
    """The registration of a strategy.

    Attributes
    ----------
    function : callable
        Takes the module, the mesh and the options, gives a plan.
    options : mapping of str to Option
        The parameters after the mesh, except for :data:`BEFORE`, :data:`OTHERS` and :data:`SYSTEM`.
    looks_at : str or None
        :data:`BESIDE`, :data:`BEFORE` or :data:`OTHERS`, if it has such a parameter.
    asks_system : bool
        Whether it has the parameter :data:`SYSTEM`.
    """

    function: Strategy
    options: Mapping[str, Option]
    looks_at: str | None
    asks_system: bool = False

    @property
    def summary(self) -> str:
        """Return the first sentence of the function's docstring."""
        return summary(self.function)


def plan_maker(function: Callable[Arguments, Plan]) -> Callable[Arguments, Plan]:
    """Make a strategy of a function ``(mod, mesh, axis="..", **options) -> Plan``.

    Its parameters after the mesh are its options: their annotations and defaults say of which type
    they are. The plan may leave axes open (None) that other strategies fill. In a training step,
    what it says of a weight goes for the new weight and the optimizer's states too.

    Raises
    ------
    PlanError
        DIST0231 when an option has no default, or a type that has no text.
    """
    parameters = inspect.signature(function).parameters
    reserved = [*list(parameters)[:2], BESIDE, BEFORE, OTHERS, SYSTEM]
    options = options_of(function, without=reserved)
    for name, parameter in parameters.items():
        if name not in reserved and (name not in options or parameter.default is parameter.empty):
            raise PlanError(
                "DIST0231",
                f'the option "{name}" has no default, or a default whose type cannot be written '
                "as text",
                location=f'strategy "{function.__name__}"',
                remedy="Give it a default that is a string, a number or a bool.",
            )

    opened: Callable[..., Plan] = function  # its arguments have types, but for the module

    @functools.wraps(function)
    @gc_paused()
    def planned(*args: Arguments.args, **options: Arguments.kwargs) -> Plan:
        module = args[0] if args else options[reserved[0]]
        check_module(module, f'strategy "{function.__name__}"')
        mod = open_tuples(fold_shapes(canonical(module)))
        if args:
            return with_updates(mod, opened(mod, *args[1:], **options))
        return with_updates(mod, opened(**{**options, reserved[0]: mod}))

    looks_at = next((name for name in (BESIDE, BEFORE, OTHERS) if name in parameters), None)
    setattr(planned, _MARK, StrategyInfo(planned, options, looks_at, SYSTEM in parameters))
    return planned


def register_strategy(name: str, function: Strategy) -> None:
    """Give a strategy a name in this process, as an entry point does for all processes.

    Parameters
    ----------
    name : str
    function : callable
        As :func:`plan_maker` takes it, or what that returned.

    Raises
    ------
    PlanError
        DIST0231 as of :func:`plan_maker`.
    UsageError
        DIST0152 for a name that cannot be taken.

    Examples
    --------
    >>> def everything_replicated(mod, mesh, axis="tp"):
    ...     "Plan without a rule."
    ...     return td.Plan((mesh,), ())
    >>> td.register_strategy("everything_replicated", everything_replicated)
    >>> len(td.planning.make_plan(td.zoo.mlp(), "everything_replicated", {"tp": 2}).rules)
    0
    """
    STRATEGIES.register(name, function if hasattr(function, _MARK) else plan_maker(function))


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies, those of other packages included."""
    return STRATEGIES.names()


def find_strategy(name: str) -> StrategyInfo:
    """Return the strategy of a name.

    Raises
    ------
    PlanError
        DIST0230 for an unknown name.
    DependencyError
        DIST0114 where another package offers it and it cannot be loaded, or is no strategy.
    """
    if name not in STRATEGIES:
        raise PlanError(
            "DIST0230", f'there is no strategy "{name}"',
            location="strategy", remedy=_meaning(name) or nearest(name, strategy_names()),
        )  # fmt: skip
    info = getattr(STRATEGIES.load(name), _MARK, None)
    if not isinstance(info, StrategyInfo):
        fault = (
            "it is not a function created with tvm_distir.planning.strategies.registry.plan_maker"
        )
        raise STRATEGIES.offered()[name].fault(fault)
    return info


def _meaning(name: str) -> str:
    """Return the strategies that a word of other libraries stands for; empty where none is known.

    Case and separators do not count: ``ZeRO-3`` is ``zero3``.
    """
    plain = "".join(c for c in name.casefold() if c.isalnum())
    known = next((known for word, known in WORDS.items() if word.replace("_", "") == plain), [])
    return f"Write {' or '.join(known)}." if known else ""


def parse(text: str) -> tuple[StrategySpec, ...]:
    """Read ``"data_parallel+megatron:axis=tp,sequence=1"``.

    Raises
    ------
    PlanError
        DIST0230 unknown strategy, DIST0231 unknown option or wrong value, DIST0235 a text
        that cannot be read.
    """
    specs = []
    for part in text.split("+"):
        name, colon, rest = part.strip().partition(":")
        name = name.strip()
        if not name or (colon and not rest.strip()):
            problem = f'"{text}" has an empty {"list of options" if name else "name"}'
            remedy = 'Write NAME, NAME:key=value,... or several joined by "+".'
            raise PlanError("DIST0235", problem, location="strategy", remedy=remedy)
        options: dict[str, Any] = {}
        for item in rest.split(",") if colon else []:
            key, equals, value = item.partition("=")
            key = key.strip()
            if not equals or not key:
                problem = f'"{item.strip()}" is not key=value'
                remedy = "Join options with commas: axis=tp,sequence=1."
                raise PlanError("DIST0235", problem, location=f'strategy "{name}"', remedy=remedy)
            if key in options:
                raise PlanError(
                    "DIST0235", f'the option "{key}" is given twice',
                    location=f'strategy "{name}"', remedy="Remove one.",
                )  # fmt: skip
            options[key] = value.strip()
        specs.append(checked(StrategySpec(name, options)))
    return tuple(specs)


def checked(spec: StrategySpec) -> StrategySpec:
    """Return the spec with its options converted to their types (DIST0230, DIST0231)."""
    known = find_strategy(spec.name).options
    options = {}
    for key, value in spec.options.items():
        if key not in known:
            raise PlanError(
                "DIST0231", f'the strategy has no option "{key}"',
                location=f'strategy "{spec.name}"', remedy=nearest(key, known),
            )  # fmt: skip
        term = Token(value) if isinstance(value, str) else as_term(value)
        try:
            options[key] = known[key].make(known[key].read(term))
        except Unreadable as fault:
            raise PlanError(
                "DIST0231", f"{key}={shortened(term)} is not {fault.expects}",
                location=f'strategy "{spec.name}"', remedy=fault.remedy or known[key].fault_remedy,
            ) from None  # fmt: skip
    return StrategySpec(spec.name, options)
