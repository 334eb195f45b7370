# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What packages can add by a name: entry points, typed options and their notation in text."""

from __future__ import annotations
