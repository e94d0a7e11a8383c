"""torch's causal attention; prints JSON. usage: sdpa.py DEVICE HEADS TOKENS DIM

bfloat16 uses the flash backend, float32 the backend that torch chooses. Only the call is timed: tensors are
in the device's memory, and the shortest of several calls counts. Operations are those of causal logits and
their use.
"""

import json
import sys
import time
from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

CALLS = 10


def synchronise(device):
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def seconds(device, shape, dtype, flash):
    q, k, v = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if flash else nullcontext():
        found = []
        for _ in range(1 + CALLS):
            synchronise(device)
            start = time.perf_counter()
            scaled_dot_product_attention(q, k, v, is_causal=True)
            synchronise(device)
            found.append(time.perf_counter() - start)
    return min(found[1:])  # the first compiles and warms up


def main(device, heads, tokens, dim):
    device, heads, tokens, dim = torch.device(device), int(heads), int(tokens), int(dim)
    torch.manual_seed(0)
    operations = 4 * dim * heads * tokens * (tokens + 1) / 2
    on_gpu = device.type != "cpu"
    times = {
        "bf16": seconds(device, (1, heads, tokens, dim), torch.bfloat16, on_gpu),
        "f32": seconds(device, (1, heads, tokens, dim), torch.float32, False),
    }
    name = torch.get_device_module(device).get_device_name(device) if on_gpu else "the machine's cores"
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "device": name,
                "gflops": {dtype: 1e-9 * operations / s for dtype, s in times.items()},
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
