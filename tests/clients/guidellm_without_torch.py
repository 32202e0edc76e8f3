"""guidellm, without torch: what it uses of torch is the iteration over its own data, and torch would be gigabytes.

    python guidellm_without_torch.py run ...

Takes guidellm's arguments. Its worker processes load this file again, and so find what stands for torch too.
"""

import sys
import types
from typing import Generic, TypeVar

# These look for torch when they are loaded, and have to do without it.
import datasets  # noqa: F401
from transformers.utils import is_torch_available

assert not is_torch_available()

Item = TypeVar("Item")


class Generator:
    """Takes a seed; nothing here draws."""

    def manual_seed(self, seed):
        return self


class Tensor:
    """What nothing is one of."""


class IterableDataset(Generic[Item]):
    pass


class DataLoader(Generic[Item]):
    """One item after the other, in this process, however many workers are wished."""

    def __init__(self, dataset, batch_size, shuffle, collate_fn, num_workers, prefetch_factor, generator):
        assert batch_size == 1 and not shuffle
        self.dataset = dataset
        self.collate_fn = collate_fn

    def __iter__(self):
        for item in self.dataset:
            yield self.collate_fn([item])


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


loader = module("torch.utils.data.dataloader", DataLoader=DataLoader)
dataset = module("torch.utils.data.dataset", IterableDataset=IterableDataset)
data = module("torch.utils.data", dataloader=loader, dataset=dataset, IterableDataset=IterableDataset,
              get_worker_info=lambda: None)
utils = module("torch.utils", data=data)
nn = module("torch.nn", Module=Tensor)
torch = module("torch", utils=utils, nn=nn, Tensor=Tensor, Generator=Generator, __version__="0", __path__=[])

if __name__ == "__main__":
    from guidellm.__main__ import cli

    cli()
