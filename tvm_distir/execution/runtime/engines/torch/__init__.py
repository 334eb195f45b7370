# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``torch`` runs a process per rank of a torch.distributed job."""

from __future__ import annotations
