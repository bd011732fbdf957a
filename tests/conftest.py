"""One thread for everything: tests compare bits, and several workers run side by side."""

import torch

torch.set_num_threads(1)
