"""Processes that we start: what a person does to ours does not reach them."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

from fedstill.engines.processes import context


def _tell_what_is_blocked(pipe: Connection) -> None:
    pipe.send(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def test_a_process_is_deaf_to_ctrl_c_from_its_first_moment_and_its_parent_is_not() -> None:
    how = context([])
    pipe, other = how.Pipe(duplex=False)
    process = how.Process(target=_tell_what_is_blocked, args=(other,))
    process.start()
    other.close()
    assert signal.SIGINT in pipe.recv()
    process.join()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
