# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The toolbox for reading and editing Relax: nodes, blocks, functions, what nobody reads."""

from __future__ import annotations
