# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir opt``: run chosen passes over a TVMScript file and print the result."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import option, parse_dims

from .help import HelpPasses, get_to_work
from .options import add_options, read_options
from .outputs import Outputs
from .stages import load_system, stopwatch
from .terminal import print_message, print_result

if TYPE_CHECKING:
    from tvm import ir


@dataclass(frozen=True)
class PassOptions:
    """Options of ``opt``.

    Parameters
    ----------
    plan : str, optional
        Set the plan of annotate{plan=...}.
    system : str, optional
        Set the system of the passes, a name or a .json file.
    output : str, optional
        Write to out.py instead of stdout.
    print_after_all : bool
        Print the module after each pass to stderr.
    verify_each : bool
        Check the IR level of the module after each pass.
    traffic : bool
        Print the collectives before and after each pass to stderr.
    time_passes : bool
        Print the time of each pass to stderr.
    """

    plan: str | None = option("read", "P.json", frequent=True)
    system: str | None = option("read", "S", frequent=True)
    output: str | None = option("run", "out.py", flag="-o", frequent=True)
    print_after_all: bool = option("run", default=False, frequent=True)
    verify_each: bool = option("run", default=False, frequent=True)
    traffic: bool = option("run", default=False, frequent=True)
    time_passes: bool = option("run", default=False, frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    about = "A .py file with a module, a .onnx, .pt2 or .mlir file, or zoo:NAME."
    parser.add_argument("input", metavar="in.py", help=about)
    passes, about = (
        "P{k=v,...},P,...",
        "Set the passes to run, with their options (see --help-passes).",
    )
    parser.add_argument("-p", "--passes", required=True, metavar=passes, help=about)
    about = "List the passes with their options and exit."
    parser.add_argument("--help-passes", action=HelpPasses, help=about)
    add_options(parser, PassOptions, ("read",))
    add_options(parser, StepOptions, names=("dims",))
    add_options(parser, PassOptions, ("run",))
    parser.set_defaults(registers=True)


def run(arguments: argparse.Namespace) -> int:
    """Read, run the passes in the order given, print."""
    from tvm_distir.models import check_model
    from tvm_distir.transforms import PASSES, levels_after, parse_passes

    dims, chosen = parse_dims(arguments.dim), read_options(arguments, PassOptions)
    if PASSES.offered():  # passes of other packages may need our ops when they are imported
        get_to_work()
    specs = parse_passes(arguments.passes, "-p")
    levels = levels_after(specs, "-p")
    check_model(arguments.input)
    get_to_work()
    outputs = Outputs(_inputs(arguments.input, chosen, specs))
    target = outputs.reserve(chosen.output, "-o")
    for spec in specs:
        outputs.reserve(spec.options.get("output"), f"output of {spec.name}")
    watch = stopwatch()
    with watch.stage("read"):
        from tvm_distir.core.analysis import check_level
        from tvm_distir.core.plan import Plan
        from tvm_distir.models import load_model

        options: dict[str, object] = {} if chosen.plan is None else {"plan": Plan.load(chosen.plan)}
        system = load_system(chosen.system, watch)
        if system is not None:
            options["system"] = system
        steps = [spec.make(**options) for spec in specs]
        mod = load_model(arguments.input, dims=dims).mod
    for spec, step, level in zip(specs, steps, levels, strict=True):
        before, name = mod, spec.name
        with watch.stage(name):
            mod = step(mod)
        if chosen.traffic:
            print_message(_change(name, before, mod))
        if chosen.print_after_all:
            print_message(f"# after {spec}\n{script(mod)}")
        if chosen.verify_each and level is not None:
            with watch.stage("verify-each"):
                check_level(mod, level)
    with watch.stage("print"):
        text = script(mod)
    if target is None:
        print_result(text)
    else:
        outputs.add(target, text)
        outputs.commit()
    if chosen.time_passes:
        for stage, took_s in watch.timings_s.items():
            print_message(f"{took_s:9.4f} s  {stage}")
    return 0


def _inputs(path: str, chosen: PassOptions, specs: Iterable[Any]) -> dict[str, str | None]:
    """Return the paths that the command reads, including those in options of passes."""
    from tvm_distir.models import model_file

    options = {
        f"{key} of {spec.name}": value
        for spec in specs
        for key, value in spec.options.items()
        if key in ("plan", "system") and isinstance(value, str)
    }
    paths = {"--plan": chosen.plan, "--system": chosen.system}
    return {"in.py": model_file(path), **paths, **options}


def _change(name: str, before: ir.IRModule, after: ir.IRModule) -> str:
    from tvm_distir.transforms import TrafficChange, traffic

    return TrafficChange(name, traffic(before), traffic(after)).to_text()


_METADATA = 'metadata = tvm.ir.load_json("""'
_LONG = 4000
_PIECE = re.compile(r"(?:[^\\]|\\.){1,1000}")
"""A part of a line that does not split an escape sequence."""


_NO_MODE = re.compile(r'(R\.grad\.take_backward\([^\n]*?), mode=""\)')


def script(mod: ir.IRModule) -> str:
    """Return the module as TVMScript that can be parsed again, ending with a newline.

    Constants stand in its metadata, a text that TVM writes with one line for all bytes of each:
    such a line is continued, by backslashes that Python leaves out when it reads the text. TVM also
    writes an attribute of ``take_backward`` that its parser does not take; it is always empty.
    """
    text = str(mod.script(show_meta=True)).rstrip("\n") + "\n"
    text = _NO_MODE.sub(r"\1)", text)
    start = text.find(_METADATA)
    if start < 0:
        return text
    end = text.index('""")', start + len(_METADATA))
    lines = text[start:end].split("\n")
    short = ("\\\n".join(_PIECE.findall(line)) if len(line) > _LONG else line for line in lines)
    return text[:start] + "\n".join(short) + text[end:]
