# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The strategies by name, and the text form in which a command line asks for them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from ..errors import PlanError, nearest
from ..plan import Plan
from .training import with_updates

Strategy = Callable[..., Plan]
Registered = TypeVar("Registered", bound=Strategy)

BEFORE, OTHERS = "before", "others"
"""Parameters of a strategy that take the plan of those made before it: of all strategies without
such a parameter; and of all but those that have ``others`` too."""

_STRATEGIES: dict[str, Strategy] = {}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class StrategySpec:
    """One strategy with its options.

    Parameters
    ----------
    name : str
        As registered.
    options : mapping of str to value
        Keyword options of the strategy.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def register_strategy(name: str) -> Callable[[Registered], Registered]:
    """Register a function ``(mod, mesh, *, axis="..", **options) -> Plan`` under a name.

    Its parameters after the mesh are its options. Their defaults are required, and say of
    which type (str, int, bool) an option is. The plan may leave axes open (None) that other
    strategies fill. In a training step, what it says of a weight goes for the new weight and the
    optimizer's states too.

    Raises
    ------
    PlanError
        DIST0230 when the name is taken by another function, DIST0231 when an option has no
        default or one of another type.
    """

    def add(function: Registered) -> Registered:
        known = _STRATEGIES.get(name)
        if known is not None and getattr(known, "__wrapped__", None) is not function:
            raise PlanError(
                "DIST0230",
                "another strategy has this name",
                place=f'strategy "{name}"',
                remedy="Choose another name.",
            )
        for option, default in _options(function).items():
            if not isinstance(default, str | int | bool):
                raise PlanError(
                    "DIST0231",
                    f'the option "{option}" has no default that is a text, an integer or a bool',
                    place=f'strategy "{name}"',
                    remedy="Give it one.",
                )

        @functools.wraps(function)
        def planned(mod: Any, mesh: Any, *args: Any, **options: Any) -> Plan:
            return with_updates(mod, function(mod, mesh, *args, **options))

        _STRATEGIES[name] = planned
        return cast(Registered, planned)

    return add


def strategies() -> dict[str, Strategy]:
    """Return the registered strategies by name."""
    return {name: _STRATEGIES[name] for name in sorted(_STRATEGIES)}


def _options(function: Strategy) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters.values())[2:]
    return {p.name: p.default for p in parameters if p.name not in (BEFORE, OTHERS)}


def knows_others(function: Strategy) -> str | None:
    """Name of the parameter through which a strategy learns of the others' plans; or None."""
    known = inspect.signature(function).parameters
    return next((name for name in (BEFORE, OTHERS) if name in known), None)


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
            raise PlanError(
                "DIST0235",
                f'"{text}" has an empty {"list of options" if name else "name"}',
                place="strategy",
                remedy='Write NAME, NAME:key=value,... or several joined by "+".',
            )
        options: dict[str, Any] = {}
        for item in rest.split(",") if colon else []:
            key, equals, value = item.partition("=")
            key = key.strip()
            if not equals or not key:
                raise PlanError(
                    "DIST0235",
                    f'"{item.strip()}" is not key=value',
                    place=f'strategy "{name}"',
                    remedy="Join options by commas: axis=tp,sequence=1.",
                )
            if key in options:
                raise PlanError(
                    "DIST0235",
                    f'the option "{key}" stands twice',
                    place=f'strategy "{name}"',
                    remedy="Remove one.",
                )
            options[key] = value.strip()
        specs.append(checked(StrategySpec(name, options)))
    return tuple(specs)


def find(name: str) -> Strategy:
    """Return the function of a strategy (DIST0230 when there is none)."""
    if name not in _STRATEGIES:
        raise PlanError(
            "DIST0230",
            f'no strategy "{name}"',
            place="strategy",
            remedy=nearest(name, _STRATEGIES),
        )
    return _STRATEGIES[name]


def checked(spec: StrategySpec) -> StrategySpec:
    """Return the spec with its options converted to their types (DIST0230, DIST0231)."""
    known = _options(find(spec.name))
    options = {}
    for key, value in spec.options.items():
        if key not in known:
            raise PlanError(
                "DIST0231",
                f'the strategy has no option "{key}"',
                place=f'strategy "{spec.name}"',
                remedy=nearest(key, known),
            )
        options[key] = _convert(spec.name, key, value, known[key])
    return StrategySpec(spec.name, options)


def _convert(name: str, key: str, value: Any, default: Any) -> Any:
    word = str(value).strip().lower()
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        if word in _TRUE + _FALSE:
            return word in _TRUE
        wanted = "0 or 1"
    elif isinstance(default, int):
        if word.lstrip("-").isdigit():
            return int(word)
        wanted = "an integer"
    else:
        if word:
            return str(value).strip()
        wanted = "a text"
    raise PlanError(
        "DIST0231",
        f"{key}={value} is not {wanted}",
        place=f'strategy "{name}"',
        remedy=f"Its default is {int(default) if isinstance(default, bool) else default}.",
    )
