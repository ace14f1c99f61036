"""A regularizer that ends its process, to test how the other ranks react.

``KILL`` says who and when: ``RANK:CALL:HOW``, HOW being ``kill`` (SIGKILL), ``stop`` (it sleeps
and does not answer) or ``raise``. torchrun's second attempt is left alone.
"""

from __future__ import annotations

import os
import signal
import time

from torch import Tensor

from robustcf._io.files import CheckpointFiles
from robustcf.errors import InputError
from robustcf.regularizers import Accumulator, WeightDecay

if "RANK" in os.environ:  # a rank of torchrun's: elsewhere, importing this changes nothing
    CheckpointFiles.due = lambda self: True  # type: ignore[method-assign]


class Killer(WeightDecay):
    """Weight decay, until its time has come."""

    calls = 0

    def add_gradient(self, U: Tensor, V: Tensor, into: Accumulator) -> float:
        """As weight decay has it, unless this is the call."""
        self.calls += 1
        rank, call, how = os.environ.get("KILL", "-1:0:kill").split(":")
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if not again and os.environ["RANK"] == rank and self.calls == int(call):
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stop":
                time.sleep(3600)  # longer than anything here waits
            raise InputError("this rank was told to fail: do not tell it")
        return super().add_gradient(U, V, into)
