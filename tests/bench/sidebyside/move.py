"""Starts a peer with its tensors on a device. usage: move.py DEVICE FILE WORD...

A peer is written for the CPU. Tensors that it makes or converts from numpy are made on the device instead,
and so are its random generators.
"""

import runpy
import sys

import torch


def main(device, file, *words):
    torch.set_default_device(device)
    from_numpy, generator = torch.from_numpy, torch.Generator
    torch.from_numpy = lambda array: from_numpy(array).to(device)
    torch.Generator = lambda: generator(device)
    sys.argv = [file, *words]
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
