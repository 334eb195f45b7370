# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Systems that run each op as a kernel of its own, for tests that count ops or add their times."""

from pathlib import Path

PLAIN_A100 = str(Path(__file__).parent / "systems" / "plain-a100.json")
PLAIN_H100 = str(Path(__file__).parent / "systems" / "plain-h100.json")
