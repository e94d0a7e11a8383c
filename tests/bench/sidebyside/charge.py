"""Runs a program and writes its time and memory. usage: charge.py REPORT PROGRAM WORD...

This is a separate, small process because Linux counts the memory of the starting process into the started
program's largest resident set. REPORT becomes JSON: code (negative: a signal), cpu_s, wall_s, rss_kib.
"""

import json
import os
import sys
import time


def main(report, *words):
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        try:
            os.execvp(words[0], words)
        except OSError as error:
            print(f"{words[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    _, status, usage = os.wait4(child, 0)
    wall_s = time.perf_counter() - start
    code, cpu_s = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    with open(report, "w") as file:  # noqa: PTH123 (pathlib alone would double this process)
        json.dump({"code": code, "cpu_s": cpu_s, "wall_s": wall_s, "rss_kib": usage.ru_maxrss}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
