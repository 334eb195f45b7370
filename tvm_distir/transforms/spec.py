# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse passes with options, such as ``bucket{bucket_bytes=1048576},schedule{system=h100}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm_distir.support import (
    Call,
    NamedFields,
    Unreadable,
    UsageError,
    as_term,
    nearest,
    read_calls,
    shortened,
)

from .registry import check_name, find_pass

if TYPE_CHECKING:
    from tvm_distir.core.passes import PassInfo


@dataclass(frozen=True)
class PassSpec:
    """Pass with the options that differ from their defaults.

    Attributes
    ----------
    name : str
    options : mapping of str to plain value
        Texts, numbers, bools, None, tuples and mappings of them; a system or plan by its name or
        path. Read by the types of the factory's parameters.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the text that parses to this value."""
        pairs = tuple((key, as_term(value)) for key, value in self.options.items())
        return str(Call(self.name, NamedFields(pairs)))

    @property
    def info(self) -> PassInfo:
        """Return the registry entry of the pass."""
        return find_pass(self.name)

    def make(self, **arguments: Any) -> Any:
        """Return the ``tvm.transform.Pass``.

        Parameters
        ----------
        given
            The values of options that the spec does not name; those that the pass lacks are
            ignored.

        Raises
        ------
        UsageError
            DIST0151 if an option is missing that has no default.
        DistIRError
            What the factory raises, and the loading of a system or plan.
        """
        return self.info.make(self.name, self.options, arguments)


def parse_passes(text: str, location: str = "passes") -> tuple[PassSpec, ...]:
    """Parse passes with their options.

    Parameters
    ----------
    text : str
        ``name{option=value,...},...``; see :mod:`tvm_distir.support.plugins.notation`.
    location : str
        The place of the text, for messages.

    Raises
    ------
    UsageError
        DIST0152 if the text cannot be read, a pass or an option is unknown (naming the
        nearest), or a value is none of its type (naming that).
    DependencyError
        DIST0114 if a pass of another package cannot be loaded.

    Examples
    --------
    >>> [str(spec) for spec in parse_passes("lower, bucket{ bucket_bytes=1024 }")]
    ['lower', 'bucket{bucket_bytes=1024}']
    """
    calls = read_calls(text, location)
    for call in calls:
        check_name(call.name, location)
    return tuple(_checked(call, location) for call in calls)


def _checked(call: Call, location: str) -> PassSpec:
    known = find_pass(call.name).options if call.options.pairs else {}
    options = {}
    for key, term in call.options.pairs:
        if key not in known:
            problem = f'the pass "{call.name}" has no option "{key}"'
            raise UsageError("DIST0152", problem, location=location, remedy=nearest(key, known))
        try:
            options[key] = known[key].read(term)
        except Unreadable as fault:
            problem = f'{key}={shortened(term)} of the pass "{call.name}" is not {fault.expects}'
            remedy = fault.remedy or known[key].fault_remedy
            raise UsageError("DIST0152", problem, location=location, remedy=remedy) from None
    return PassSpec(call.name, options)


def levels_after(specs: Sequence[PassSpec], location: str = "passes") -> list[str | None]:
    """Return the level of a module after a sequence of passes, as far as they declare it.

    Raises
    ------
    UsageError
        DIST0151 if a pass cannot take what those before it give.
    """
    from tvm_distir.core.analysis import LEVELS

    possible = set(LEVELS.values())
    result: list[str | None] = []
    for spec in specs:
        info = spec.info
        accepted = possible & set(info.takes)
        if not accepted:
            raise UsageError(
                "DIST0151",
                f'"{spec.name}" requires modules that are {" or ".join(info.takes)}; after the '
                "passes "
                f"before it they are {' or '.join(sorted(possible))}",
                location=location,
                remedy="Run the passes in order: annotate, propagate, legalize, lower.",
            )
        possible = accepted if info.gives is None else {info.gives}
        result.append(next(iter(possible)) if len(possible) == 1 else None)
    return result
