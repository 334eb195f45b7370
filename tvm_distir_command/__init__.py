# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The console script ``tvm-distir``.

It stands outside the package because importing that raises an error where TVM is missing or of
another version: the command says so in one line, a program gets the exception.
"""

from __future__ import annotations

import gc
import sys
import warnings

registers = False
"""Whether the command runs: the package then leaves it to the command when TVM is imported."""


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
