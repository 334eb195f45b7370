# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Create help texts on demand, with the entries of other packages."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .terminal import print_result

if TYPE_CHECKING:
    from tvm_distir.support import Option

_WIDTH = 100
_CLAUSE = re.compile(r"[.:;] | \(")
"""What ends the first clause of a help text."""


def get_to_work() -> None:
    """Import TVM and register our ops, before any part of the package that needs them."""
    from tvm_distir.interface.registration import register

    register()


class ShortHelp(argparse.Action):
    """Prints a clause on each option but those that are rarely given; ``--help-all`` has all."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the help."""
        rare = [action for action in parser._actions if getattr(action, "rare", False)]
        for action in parser._actions:
            if action in rare:
                action.help = argparse.SUPPRESS
            elif action.option_strings:
                clause = _CLAUSE.split(action.help or "", maxsplit=1)[0]
                action.help = f"{clause.rstrip('.')}."
        words = [str(a.metavar) for a in parser._actions if not a.option_strings]
        parser.usage = " ".join([parser.prog, *words, "[options]"])
        parser.print_help()
        if rare:
            print_result(f"\n{len(rare)} more options: {parser.prog} --help-all\n")
        parser.exit()


def mark_rare(action: argparse.Action) -> None:
    """Leave an option out of the short help."""
    action.rare = True  # type: ignore[attr-defined]


class _Listing(argparse.Action):
    """Prints a text and ends the command."""

    def __init__(self, option_strings: Any, dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def text(self) -> str:
        """Return the text."""
        raise NotImplementedError

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the text."""
        get_to_work()
        print_result(self.text())
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


SYSTEM_HELP = "A system of `tvm-distir systems`, such as h100, or a .json file."


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
