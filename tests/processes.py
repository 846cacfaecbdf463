"""`sntg` in processes of its own, which tests may kill.

They are forked from a server that has the package imported, so that one starts in no time; what they do from then on
is what `python -m sntg` does.
"""

import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import sntg

SOURCE = str(Path(sntg.__file__).parents[1])
PATIENCE = 60.0  # seconds for anything that takes a fraction of one


class Sntg:
    """A running `sntg ARGUMENTS`; what it prints goes into two files in `log`. file_limit: bytes a file may have."""

    def __init__(self, log, *arguments, file_limit=0):
        log.mkdir(parents=True, exist_ok=True)
        self.log = log
        job = (list(map(str, arguments)), str(log), file_limit)
        self.process = server().Process(target=_main, args=job)
        self.process.start()

    @property
    def pid(self):
        return self.process.pid

    @property
    def running(self):
        return self.process.is_alive()

    def send(self, number):
        os.kill(self.pid, number)

    def hears(self, number):
        """Whether the process has a handler for a signal; where that cannot be seen, after a while."""
        status = Path(f"/proc/{self.pid}/status")
        if not status.exists():
            time.sleep(1.0)
            return True
        caught = int(re.search(r"^SigCgt:\s*(\w+)", status.read_text(), flags=re.M)[1], 16)
        return bool(caught >> (number - 1) & 1)

    def kill(self):
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        return self.wait()

    def wait(self):
        """The exit code; that of a killed process is minus the signal."""
        self.process.join(PATIENCE)
        assert not self.running, f"still running: {self.err}"
        return self.process.exitcode

    def wait_for(self, condition):
        """Waits until condition() holds, looking often; False if the process ended before it did."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if not self.running:
                return False
            assert time.monotonic() < end, f"waited in vain: {self.err}"
            time.sleep(0.0002)  # other processes want the core too
        return True

    @property
    def out(self):
        return (self.log / "stdout").read_text()

    @property
    def err(self):
        return (self.log / "stderr").read_text()


def server():
    """The context that forks from the server, which it starts if need be."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sntg.cli"])
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    os.environ.update(PYTHONPATH=SOURCE, OMP_NUM_THREADS="1")
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return context


def _main(arguments, log, file_limit):
    for handle, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{log}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    if file_limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails instead, as it does on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["sntg", *arguments]
    from sntg.cli import main

    main()
