# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The console script ``tvm-distir``.

It stands outside the package because importing that raises an error where TVM is missing or of
another version: the command says so in one line, a program gets the exception.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator
from typing import Any

registers = False
"""Whether the command runs: the package then leaves it to the command when TVM is imported."""


class _NoTorch:
    """Finder of modules that finds no PyTorch."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextlib.contextmanager
def torch_hidden() -> Iterator[None]:
    """Hide PyTorch from TVM's FFI, which imports it, in 2 s of CPU, wherever it is installed.

    It can be imported afterwards. Not hidden where the arguments name it or a file of it, nor where
    a deployed folder is run, whose kernels may be those of PyTorch.
    """
    words = sys.argv[1:]
    if words[:1] == ["run"] or any(
        "torch" in word or word.endswith((".pt", ".pt2")) for word in words
    ):
        yield
        return
    finder: Any = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def main() -> int:
    """Run ``tvm-distir`` with the arguments of the process; returns its exit code."""
    global registers
    registers = True
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        from tvm_distir.interface.command.app import main as run
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        code = getattr(error, "exit_code", None)  # of an error of ours
        if not isinstance(code, int):
            raise
        if sys.stderr is not None:
            print(error, file=sys.stderr)
        return code
    code = run()
    gc.freeze()  # else the interpreter looks through all that is left, to end
    return code
