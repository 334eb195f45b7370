# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Create help texts on demand, with the entries of other packages."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .terminal import put

if TYPE_CHECKING:
    from tvm_distir.support import Option

_WIDTH = 100


def get_to_work() -> None:
    """Import TVM and register our ops, before any part of the package that needs them."""
    from tvm_distir.interface.registration import register

    register()


class _Late:
    """A text that is computed when it is formatted."""

    def __init__(self, text: Callable[[], str]) -> None:
        self.text = text

    def __str__(self) -> str:
        get_to_work()
        return self.text()


class LateHelp(argparse.Action):
    """Stores a value. Its help text is computed only when it is shown.

    Parameters
    ----------
    late : callable
        Gives the text.
    """

    def __init__(
        self, option_strings: Sequence[str], dest: str, late: Callable[[], str], **options: Any
    ) -> None:
        super().__init__(option_strings, dest, **{**options, "help": "%(late)s"})
        self.late = _Late(late)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        """Store the value."""
        setattr(namespace, self.dest, values)


class LateHelps(LateHelp):
    """Collects the values of a repeated option in a list."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        """Add the value."""
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), values])


class _Listing(argparse.Action):
    """Prints a text and ends the command."""

    def __init__(self, option_strings: Any, dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def text(self) -> str:
        """Return the text."""
        raise NotImplementedError

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the text."""
        get_to_work()
        put(self.text())
        parser.exit()


class HelpPasses(_Listing):
    """Prints the passes."""

    def text(self) -> str:
        """Return every pass with its levels, summary and options."""
        from tvm_distir.transforms import find_pass, pass_names

        passes = ((name, find_pass(name)) for name in pass_names())
        return "".join(
            entry(f"{name} ({info.levels})", info.summary, info.options) for name, info in passes
        )


class HelpStrategies(_Listing):
    """Prints the strategies."""

    def text(self) -> str:
        """Return every strategy with its summary and options."""
        from tvm_distir.planning import find_strategy, strategy_names

        strategies = ((name, find_strategy(name)) for name in strategy_names())
        return "".join(entry(name, info.summary, info.options) for name, info in strategies)


def expanded(text: str) -> str:
    """Return a text with the names that stand for ``{strategies}``, ``{optimizers}``, ..."""
    from tvm_distir.planning import strategy_names
    from tvm_distir.transforms import optimizer_names

    for word, names in (("{strategies}", strategy_names), ("{optimizers}", optimizer_names)):
        text = text.replace(word, ", ".join(names())) if word in text else text
    return text.replace("{systems}", system_help()) if "{systems}" in text else text


def system_help() -> str:
    """Return the help on the values of ``--system``."""
    from tvm_distir.hardware import system_names

    return f"A system: {', '.join(system_names())}, or a .json file."


def pass_names() -> Iterable[str]:
    """Return the names of all passes."""
    from tvm_distir.transforms import pass_names as names

    return names()


def entry(title: str, summary: str, options: Mapping[str, Option]) -> str:
    """Return an entry of a listing: its title, its summary, and a line per option."""
    lines = [title, *_wrapped(summary, 4)]
    for option in options.values():
        default = f"={option.default_text}" if option.default_text else ""
        lines.append(f"    {option.name}{default} ({option.kind.word})")
        lines += _wrapped(option.help, 8)
    return "\n".join([*lines, ""])


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
