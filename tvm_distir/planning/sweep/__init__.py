# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Many configurations of one model: steps predicted for the rows of a table."""

from __future__ import annotations
