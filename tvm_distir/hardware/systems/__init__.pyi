# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .network import wire_bytes as wire_bytes
from .system import System as System
