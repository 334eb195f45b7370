# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derive the options of a function from its parameters, defaults and docstring."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .docstrings import parameter_help
from .kinds import OptionType, as_term, kind_of
from .notation import Term

REQUIRED = inspect.Parameter.empty
"""Marker of an option without default."""


@dataclass(frozen=True)
class Option:
    """A parameter that can be given as text.

    Attributes
    ----------
    name : str
    kind : OptionType
        The type by which its text is read.
    default : value
        :data:`REQUIRED` where there is none.
    help : str
        A sentence of the docstring.
    """

    name: str
    kind: OptionType
    default: object
    help: str

    def read(self, term: Term) -> object:
        """Read a plain value (:class:`.kinds.Unreadable` where the text is none of the type)."""
        return self.kind.read(term)

    def make(self, value: object) -> object:
        """Convert a plain value to the argument of the function."""
        return self.kind.make(value)

    @property
    def default_text(self) -> str:
        """Return the default as text; empty where there is none, or it has no text."""
        default = self.default
        if default is REQUIRED:
            return ""
        if dataclasses.is_dataclass(default):
            return str(getattr(default, "name", ""))
        return str(as_term(default))

    @property
    def fault_remedy(self) -> str:
        """Return the remedy for a wrong value."""
        default = self.default_text
        return f"Its default is {default}." if default else f"Give {self.kind.expects}."


def options_of(function: Callable[..., object], without: Collection[str] = ()) -> dict[str, Option]:
    """Return the options of a function by name: the parameters whose type has a notation.

    Parameters
    ----------
    function : callable
        A function with annotations; where an annotation lacks, the type of the default counts.
    without : collection of str
        Parameters that are no options.
    """
    help_texts = parameter_help(function)
    options = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in without:
            continue
        default = parameter.default
        kind = kind_of(_annotation(function, parameter))
        if kind is not None:
            help_text = help_texts.get(parameter.name, "")
            options[parameter.name] = Option(parameter.name, kind, default, help_text)
    return options


def _annotation(function: Callable[..., object], parameter: inspect.Parameter) -> object:
    """Return the type of a parameter; of its default where none is written."""
    if parameter.annotation is REQUIRED:
        return None if parameter.default is REQUIRED else type(parameter.default)
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return eval(parameter.annotation, inspect.unwrap(function).__globals__)
    except NameError:  # known to type checkers only: such a type has no text
        return None
