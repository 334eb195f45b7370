# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``processes`` runs a worker process per rank over shared memory."""

from __future__ import annotations
