# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register plugins by name, with typed options and their text notation."""

from __future__ import annotations
