# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The ``tvm-distir`` command: one file per sub-command, results on stdout, messages on stderr."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
