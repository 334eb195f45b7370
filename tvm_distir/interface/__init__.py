# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the user interface: the command line, reports and explanations."""

from __future__ import annotations
