# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let the processes of MPI jobs begin with TVM's runtime imported."""

from __future__ import annotations

from tests.child_processes import quick_python
from tvm_distir.execution.runtime.engines.mpi import launch


class _Interpreter:
    """What the launcher asks of the module ``sys``."""

    @property
    def executable(self) -> str:
        """Return the interpreter, whose server is started when it is first asked for."""
        return quick_python(TVM_USE_RUNTIME_LIB="1")


def install() -> None:
    """Let the launcher of this process start the interpreter of tests."""
    launch.sys = _Interpreter()  # type: ignore[assignment]
