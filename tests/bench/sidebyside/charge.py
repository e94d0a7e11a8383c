"""Runs a program and writes what it used. usage: charge.py REPORT PROGRAM WORD...

A process of its own, small on purpose: Linux counts the memory of the process that started a program into
that program's largest resident set. REPORT becomes JSON: code (negative: a signal), cpu_s, rss_kib.
"""

import json
import os
import sys


def main(report, *words):
    child = os.fork()
    if child == 0:
        try:
            os.execvp(words[0], words)
        except OSError as error:
            print(f"{words[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with open(report, "w") as file:  # noqa: PTH123 (pathlib alone would double this process)
        json.dump({"code": code, "cpu_s": usage.ru_utime + usage.ru_stime, "rss_kib": usage.ru_maxrss}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
