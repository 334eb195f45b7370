# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir opt``: run chosen passes over a TVMScript file and print the result."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..errors import UsageError
from .outputs import Outputs
from .stages import COLLECTIVES, LEVELS, PASSES, Stopwatch, check_pass, load_plan, make_pass


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "opt",
        help="run passes over a TVMScript file",
        description="Run passes over a TVMScript file and print the resulting module.",
        allow_abbrev=False,
    )
    parser.add_argument("input", metavar="in.py", help="a .py file that holds one module")
    parser.add_argument(
        "-p", "--passes", required=True, metavar="P,P,...", help=f"of {', '.join(PASSES)}"
    )
    parser.add_argument("--plan", metavar="P.json", help="the plan for annotate")
    parser.add_argument("-o", dest="output", metavar="out.py", help="write here, not to stdout")
    parser.add_argument(
        "--print-after-all", action="store_true", help="print the module after each pass to stderr"
    )
    parser.add_argument(
        "--verify-each", action="store_true", help="check the module's level after each pass"
    )
    parser.add_argument(
        "--traffic",
        action="store_true",
        help="print the collectives before and after each pass to stderr",
    )
    parser.add_argument("--time-passes", action="store_true", help="print the times to stderr")
    parser.set_defaults(run=run)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(
            "DIST0152",
            f'"{text}" holds an empty name',
            place="-p",
            remedy=f"Write passes separated by commas: {','.join(PASSES)}.",
        )
    return names


def run(arguments: argparse.Namespace) -> int:
    """Read, run the passes in the order given, print."""
    names = _names(arguments.passes)
    for name in names:
        check_pass(name, arguments.plan is not None)
    outputs = Outputs()
    target = outputs.promise(arguments.output, "-o")
    watch = Stopwatch()
    with watch.stage("read"):
        from ..analysis import check_level
        from ..frontend import from_tvmscript

        plan = load_plan(arguments.plan, None) if arguments.plan is not None else None
        steps = [(name, make_pass(name, plan)) for name in names]
        mod = from_tvmscript(arguments.input)
    levels = {**LEVELS, **COLLECTIVES}
    for name, step in steps:
        before = mod
        with watch.stage(name):
            mod = step(mod)
        if arguments.traffic:
            print(_change(name, before, mod), file=sys.stderr)
        if arguments.print_after_all:
            print(f"# after {name}\n{script(mod)}", file=sys.stderr)
        if arguments.verify_each and name in levels:
            with watch.stage("verify-each"):
                check_level(mod, levels[name])
    with watch.stage("print"):
        text = script(mod)
    if target is None:
        sys.stdout.write(text)
    else:
        outputs.add(target, text)
        outputs.commit()
    if arguments.time_passes:
        for stage, took_s in watch.timings_s.items():
            print(f"{took_s:9.4f} s  {stage}", file=sys.stderr)
    return 0


def _change(name: str, before: Any, after: Any) -> str:
    from ..transform.optimize import Change, traffic

    return Change(name, traffic(before), traffic(after)).to_text()


def script(mod: Any) -> str:
    """The module as TVMScript that parses back, ending with a newline."""
    return str(mod.script(show_meta=True)).rstrip("\n") + "\n"
