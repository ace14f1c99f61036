"""The exceptions that robustcf raises on purpose.

Every message says what was expected, what was got and what to do, on one line: the command line
prints it as it is. Each class also derives from the built-in exception that fits.
"""


class RobustcfError(Exception):
    """Base of all errors that robustcf raises deliberately."""


class InputError(RobustcfError, ValueError):
    """An argument is outside what the function is defined for."""


class DataError(InputError):
    """Interactions, a data file or a split break one of their rules."""


class IdleSettingError(InputError):
    """A setting was given that the chosen model, attack or regularizer does not use."""


class DownloadError(RobustcfError, OSError):
    """A file could not be obtained from any of its sources."""


class TrainingError(RobustcfError, ArithmeticError):
    """Training diverged: a loss, a penalty or an update is not finite any more."""


class WriteError(RobustcfError, OSError):
    """A file could not be written: the disk is full, or the place may not be written to."""


class UnfinishedError(InputError):
    """A run is unfinished, and ``allow_unfinished`` is False."""


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C or SIGTERM; the message says what is kept and how to resume."""


class RanksError(RobustcfError, RuntimeError):
    """One of the processes that work on one job ended, or does not answer."""
