# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Declare the options of commands as fields of dataclasses, whose docstrings are their help."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from .docstrings import parameter_texts

Reader = Callable[[Any, str], Any]
"""A function from the text of an option, and the option, to the value."""
_Parameters = ParamSpec("_Parameters")
_Options = TypeVar("_Options")
_Result = TypeVar("_Result")


def _keep(text: object, _option: str) -> object:
    return text


@dataclass(frozen=True)
class CommandOption:
    """The command's form of a field of a dataclass.

    Attributes
    ----------
    stage : str
        The stage of the work that the option belongs to.
    metavar : str
        The value in the help; empty for a switch.
    read : callable
        A function from the text and the flag to the value of the field.
    to : tuple of str
        Functions that have a parameter of the same name.
    repeated : bool
        Whether the option may be given several times.
    choices : tuple of str, optional
        The only texts.
    frequent : bool
        Whether the short help shows it.
    name, flag : str
        The field, and the option, as ``--bucket-bytes``.
    default, usual : value
        The values of the field without the option, in Python and of the command where that has
        another one.
    help : str
        The docstring's text on the field.
    """

    stage: str = ""
    metavar: str = ""
    read: Reader = _keep
    to: tuple[str, ...] = ()
    repeated: bool = False
    choices: Sequence[str] | None = None
    frequent: bool = False
    name: str = ""
    flag: str = ""
    default: object = None
    usual: object = None
    help: str = ""

    @property
    def key(self) -> str:
        """Return the name of the flag as an identifier; of a letter, that of the field."""
        return self.flag[2:].replace("-", "_") or self.name

    def words(self, text: Any) -> list[str]:
        """Return the words of a command that give the option, which are none for its default."""
        if text is None or text == (self.default if self.usual is None else self.usual):
            return []
        if isinstance(text, bool):
            return [self.flag if text else f"--no-{self.flag[2:]}"]
        return [word for item in (text if self.repeated else [text]) for word in (self.flag, item)]


def option(
    stage: str, metavar: str = "", read: Reader = _keep, *, default: object = None, **more: Any
) -> Any:
    """Declare a field that is an option; see :class:`CommandOption`."""
    declared = CommandOption(stage, metavar, read, default=default, **more)
    return dataclasses.field(default=default, metadata={"option": declared})


def _texts(cls: type) -> dict[str, str]:
    """Return the texts on the fields of a dataclass, those of its bases first."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= parameter_texts(base)
    return texts


@functools.cache
def option_fields(cls: type) -> dict[str, CommandOption]:
    """Return the options of a dataclass by the names of its fields, in their order."""
    texts = _texts(cls)
    return {
        field.name: dataclasses.replace(
            declared,
            name=field.name,
            flag=declared.flag or f"--{field.name.replace('_', '-')}",
            help=texts.get(field.name, ""),
        )
        for field in dataclasses.fields(cls)
        if (declared := field.metadata.get("option")) is not None
    }


def parameters_of(
    cls: Callable[_Parameters, _Options],
) -> Callable[[Callable[[_Options], _Result]], Callable[_Parameters, _Result]]:
    """Give a function of options the parameters of their dataclass, with their help.

    The texts replace ``{parameters}`` in the docstring of the function.
    """
    signature, texts = inspect.signature(cls), _texts(cls)  # type: ignore[arg-type]
    listed = "".join(
        f"    {name} : {parameter.annotation}\n        {texts[name]}\n"
        for name, parameter in signature.parameters.items()
    )

    def decorate(function: Callable[[_Options], _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            signature.bind(*args, **kwargs)
            return function(cls(*args, **kwargs))

        result = inspect.signature(function).return_annotation
        call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        call.__doc__ = (call.__doc__ or "").replace("    {parameters}\n", listed)
        return call

    return decorate
