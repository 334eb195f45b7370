# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .calls import decode_collective as decode_collective
from .calls import decode_transfer as decode_transfer
from .meaning import Collective as Collective
from .meaning import all_reduce as all_reduce
from .meaning import apply as apply
from .meaning import apply_groups as apply_groups
from .meaning import apply_local as apply_local
from .meaning import counted_bytes as counted_bytes
from .meaning import equal_parts as equal_parts
from .packed_calls import packed_arguments as packed_arguments
from .packed_calls import packed_transfer_arguments as packed_transfer_arguments
from .packed_calls import with_collectives as with_collectives
from .tiles import Side as Side
from .tiles import Transfer as Transfer
from .volume import RING_PASSES as RING_PASSES
from .volume import check_kind as check_kind
from .volume import sent_bytes as sent_bytes
from .volume import sent_share as sent_share
