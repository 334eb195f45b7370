# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a user sees: the command line, reports and explanations."""

from __future__ import annotations
