"""The cost model.

Idle OpenMP threads sleep instead of spinning: on a machine whose cores are taken (by compilers, by other tests) boosted trees
with two spinning threads took ten times as long as with one. Must be set before XGBoost or PyTorch is loaded.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
