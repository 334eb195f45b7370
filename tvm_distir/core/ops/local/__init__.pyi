# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .attrs import changed as changed
from .call import LocalCall as LocalCall
from .call import expected_mismatch as expected_mismatch
from .fold import folded as folded
from .fold import is_foldable as is_foldable
from .halo import block as block
from .halo import fetched as fetched
from .halo import picked as picked
from .halo import returned as returned
from .halo import with_halo as with_halo
from .halo import with_rows as with_rows
from .halo import without_padding as without_padding
from .masking import neutral_element as neutral_element
from .own_positions import as_int64 as as_int64
from .own_positions import own_positions as own_positions
from .positions import BlockMemo as BlockMemo
from .shard import Operand as Operand
from .shard import Shard as Shard
from .shard import shard as shard
from .sharding import local_form as local_form
from .sharding import stays_zero as stays_zero
from .sliding import halo_dims as halo_dims
from .sliding import lowest as lowest
from .sliding import planned as planned
from .sliding import pool_kernel as pool_kernel
from .sliding import slid as slid
from .sliding import spatial as spatial
from .statistics import WIDE as WIDE
from .statistics import Moments as Moments
from .statistics import cutting_axes as cutting_axes
from .statistics import fill_padding as fill_padding
from .statistics import reduced as reduced
from .statistics import widened as widened
