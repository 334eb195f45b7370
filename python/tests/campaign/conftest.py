# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makes the campaign's files importable by its tests."""

from __future__ import annotations
