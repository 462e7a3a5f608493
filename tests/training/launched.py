"""`training.run` as a launcher starts it, in exact arithmetic and with the short prompt of the tests."""

import torch

import models.base
import models.prompts
from training.run import main

if __name__ == "__main__":
    torch.set_num_threads(1)
    models.base.pick_dtype = lambda _device: torch.float32
    models.prompts.INSTRUCTION = "Answer."
    main()
