"""The table of operations on mixes of devices and on one GPU, with CUDA's behaviour for each, in parts by rule.

Each line names its source in torch. `test_op_table.py` checks the table on virtual GPUs, and on real ones if there are
two.
"""

from tests.virtual_gpus.rules.op_table.elementwise import ELEMENTWISE
from tests.virtual_gpus.rules.op_table.indexing import INDEXING
from tests.virtual_gpus.rules.op_table.one_device import ONE_DEVICE
from tests.virtual_gpus.rules.op_table.transfers import TRANSFERS
from tests.virtual_gpus.rules.op_table.waiting import WAITING

CASES = [*ELEMENTWISE, *ONE_DEVICE, *INDEXING, *TRANSFERS, *WAITING]
