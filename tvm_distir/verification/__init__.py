# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``verify``: a distributed program against the original, and where they first differ."""

from __future__ import annotations

from .compare import TOLERANCES, OutputReport, coarsest_float
from .report import VerifyReport
from .verifying import verify

__all__ = ["TOLERANCES", "OutputReport", "VerifyReport", "coarsest_float", "verify"]
