# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .clock import PICOSECONDS as PICOSECONDS
from .clock import Clock as Clock
from .clock import picoseconds as picoseconds
from .constants import LINKS as LINKS
from .constants import MEANINGS as MEANINGS
from .constants import MOST as MOST
from .constants import OTHERWISE as OTHERWISE
from .constants import Constant as Constant
from .constants import Meaning as Meaning
from .hardware import KERNEL_CLASSES as KERNEL_CLASSES
from .hardware import TENSOR_CLASSES as TENSOR_CLASSES
from .hardware import VIEW as VIEW
from .hardware import Device as Device
from .hardware import Efficiency as Efficiency
from .hardware import HostLink as HostLink
from .hardware import InterNode as InterNode
from .hardware import IntraNode as IntraNode
from .model import Roofline as Roofline
from .model import System as System
from .model import WorkLike as WorkLike
from .network import GroupLayout as GroupLayout
from .network import Spread as Spread
from .network import pair_up as pair_up
from .network import wire_bytes as wire_bytes
from .network import wire_share as wire_share
from .reading import SCHEMA_VERSION as SCHEMA_VERSION
from .reading import system_names as system_names
from .writing import to_data as to_data
