# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the text of MLIR modules without MLIR."""

from __future__ import annotations
