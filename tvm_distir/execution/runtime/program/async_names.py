# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the packed functions of collectives that are started and awaited, without TVM's compiler."""

from __future__ import annotations

START = "_start"
"""The end of the name of the packed function that starts a collective."""

DONE = "tvm_distir.ccl.done"
"""The name of the packed function that waits for a started collective."""
