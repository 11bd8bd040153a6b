"""What all tests share. Set before XGBoost or PyTorch is loaded: idle threads sleep, or parallel tests take turns spinning."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
