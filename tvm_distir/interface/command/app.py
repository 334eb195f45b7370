# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the command line, and convert failures to messages and exit codes.

Exit codes: 0 success, 1 error in the input, 2 error in the command line, 3 infeasible request,
70 a bug of the plugin (also: `verify` detected a difference), 130 interrupted.

TVM is imported by the sub-commands only when they run; those that set ``registers`` check
their options first.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from tvm_distir.support import DistIRError, UsageError, shipped_data

from . import (
    analyze,
    ask,
    calibrate,
    check,
    compare,
    convert,
    deploy,
    explain,
    export_plan,
    export_weights,
    learn,
    opt,
    run,
    search,
    serve_analyze,
    serve_search,
    simulate,
    sweep,
    systems,
    ui,
    verify,
)
from .help import ShortHelp, get_to_work, mark_rare
from .progress import Interrupts, at_work
from .renamed_options import check_renamed
from .terminal import (
    forget,
    forget_warnings,
    open_closed_streams,
    print_message,
    print_result,
    warn,
)

EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141

_COMMANDS = (
    ask, analyze, compare, ui, search, sweep, serve_analyze, serve_search, explain, verify, check,
    opt, convert, export_plan, simulate, deploy, run, export_weights, systems, calibrate, learn,
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises usage errors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(add_help=False, allow_abbrev=False, **options)
        self.add_argument("-h", "--help", action=ShortHelp, help="Show this help and exit.")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help as a result: argparse ignores a failure to print."""
        if message:
            (print_result if file in (None, sys.stdout) else print_message)(message)

    def error(self, message: str) -> NoReturn:
        """Raise a usage error."""
        raise UsageError(
            "DIST0150", message, location=self.prog, remedy=f"See `{self.prog} --help`."
        )


class _Version(argparse.Action):
    """Prints the versions of the package and of TVM."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        from tvm_distir import __version__

        versions = [f"tvm-distir {__version__}"]
        for name in ("apache-tvm", "apache-tvm-ffi"):
            try:
                versions.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                versions.append(f"{name} is not installed")
        print_result("\n".join([*versions, ""]))
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command."""
    parser = _Parser(
        prog="tvm-distir",
        description="Distribute Relax models over device meshes, and verify and simulate them.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="Print the versions and exit.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    texts = shipped_data(__file__, "commands.json")
    for module in _COMMANDS:
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        sub = commands.add_parser(name, **texts[name])
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
        debug = sub.add_argument(
            "--debug",
            action="store_true",
            help="Print the traceback of an error (also: TVM_DISTIR_DEBUG=1).",
        )
        mark_rare(debug)
        sub.add_argument("--help-all", action="help", help="Show all options and exit.")
    return parser


def parse_words(words: list[str]) -> argparse.Namespace:
    """Return the arguments of a command line; one that begins with a MODEL is a question."""
    if ask.is_question(words, set(shipped_data(__file__, "commands.json"))):
        words = ["ask", *words]
    return build_parser().parse_args(words)


def _one_line(kind: str, message: str) -> str:
    text = " ".join(message.split())
    return f"{kind}: {text[:300]}{'...' if len(text) > 300 else ''}" if text else kind


def _report(error: BaseException, debug: bool) -> int:
    """Print the message of a failure and return the exit code."""
    if debug:
        print_message("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, DistIRError):
        print_message(str(error).replace("\n", "\n  "))
        return error.exit_code
    hint = "" if debug else " [Run the command again with --debug and report the traceback.]"
    print_message(f"DIST0901 internal error: {_one_line(type(error).__name__, str(error))}{hint}")
    return EXIT_INTERNAL


def _wants_debug(argv: Sequence[str]) -> bool:
    return "--debug" in argv or os.environ.get("TVM_DISTIR_DEBUG", "") not in ("", "0")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``tvm-distir``.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the command's name; those of the process when not given.

    Returns
    -------
    code : int
        The exit code. No exception leaves this function.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    try:
        return _run(words)
    except BrokenPipeError:
        # Who read the results or the messages has gone, and wants no more of them.
        forget(sys.stdout)
        forget(sys.stderr)
        return EXIT_PIPE_CLOSED


def _run(words: list[str]) -> int:
    """Run the sub-command; failures become a message and a code."""
    debug, interrupts = _wants_debug(words), Interrupts()
    forget_warnings()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: warn(str(message))
            check_renamed(words)
            arguments = parse_words(words)
            if not getattr(arguments, "registers", False):
                get_to_work()
            with interrupts.noted(), at_work(quiet=not debug):
                return int(arguments.run(arguments))
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _stopped()
    except BrokenPipeError:
        raise
    except Exception as error:
        return _stopped() if interrupts.seen else _report(error, debug)


def _stopped() -> int:
    """Report that Ctrl-C ended the command."""
    print_message("interrupted")
    return EXIT_INTERRUPTED
