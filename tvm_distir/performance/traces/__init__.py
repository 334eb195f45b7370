# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write traces of simulated steps in formats of other tools, without these tools."""

from __future__ import annotations
