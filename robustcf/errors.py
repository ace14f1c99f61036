"""The exceptions robustcf raises on purpose.

Every message says what was expected, what was got and what to do, on one line: the command
line prints it as it is. Each class also derives from the built-in exception a caller would
reach for, so ``except ValueError`` keeps working in code that has never heard of robustcf.
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
    """A run has not come to its end, and nobody said that it may be used all the same."""


class Interrupted(KeyboardInterrupt):
    """Stopped from outside, by Ctrl-C or SIGTERM; the message says what is kept, how to go on."""


class RanksError(RobustcfError, RuntimeError):
    """Processes that work on one job have lost each other: one ended, or does not answer."""
