"""One product of float32 matrices by numpy's BLAS on one thread; prints JSON. usage: sgemm.py SIZE"""

import json
import os
import sys
import time

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # read when numpy is imported

import numpy as np


def blas_name():
    """The BLAS that numpy was built with."""
    built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{built['name']} {built['version']}"


def main(size):
    a = np.full((size, size), 0.5, np.float32)
    a @ a  # warms up pages and threads
    start = time.process_time()
    a @ a
    seconds = time.process_time() - start
    print(json.dumps({"cpu_s": seconds, "gflops": 2e-9 * size**3 / seconds, "blas": blas_name()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
