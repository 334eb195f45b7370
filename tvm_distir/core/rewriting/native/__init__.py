# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read and write Relax functions in bulk through the native library."""

from __future__ import annotations
