"""Operations on mixes of devices and on one GPU, and what CUDA makes of each: the table, in parts by rule.

Each line says where torch says so. `test_op_table.py` holds virtual GPUs to the table, and real ones where there are
two.
"""

from tests.testing.rules.op_table.elementwise import ELEMENTWISE
from tests.testing.rules.op_table.indexing import INDEXING
from tests.testing.rules.op_table.one_device import ONE_DEVICE
from tests.testing.rules.op_table.transfers import TRANSFERS
from tests.testing.rules.op_table.waiting import WAITING

CASES = [*ELEMENTWISE, *ONE_DEVICE, *INDEXING, *TRANSFERS, *WAITING]
