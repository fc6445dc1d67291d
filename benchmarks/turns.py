"""Measurements in turn: each contender lives in a process of its own and waits until it is asked.

Only one of them computes at a time, so that all meet the same machine in the same mood.
"""

import json
import os
import statistics
import subprocess
import sys
import time

WARM_UP = 2


def serve(call, facts):
    """Say what is to be measured, then the seconds of one call for every line that comes in."""
    for _ in range(WARM_UP):
        call()
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        call()
        print(time.perf_counter() - start, flush=True)


class Contender:
    """A process that runs ``serve``."""

    def __init__(self, *command):
        folder = os.path.dirname(__file__)
        paths = os.pathsep.join([folder, os.path.join(folder, "..", "src")])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._command = " ".join(command)
        self.facts = json.loads(self._said())

    def seconds(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._said())

    def _said(self):
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self._command} ended by itself, code {self._process.wait()}")
        return line

    def end(self):
        self._process.stdin.close()
        self._process.wait()


def medians(contenders, *, rounds, pause=0.2):
    """Median seconds of each, asked one after the other, ``rounds`` times."""
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            # threads of the one before may still be spinning
            time.sleep(pause)
            times[name].append(contender.seconds())
    return {name: statistics.median(log) for name, log in times.items()}
