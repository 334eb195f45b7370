# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``xla`` compiles and runs the program's StableHLO by XLA:CPU in a separate process."""

from __future__ import annotations
