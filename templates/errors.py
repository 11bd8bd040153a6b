"""The one error a user can cause."""


class InputError(ValueError):
    """Bad input from outside: one line that says what is wrong, where, and what to do.

    Stages print it and exit with status 2; anything else that escapes is a fault of this program.
    """


class NothingToDo(InputError):
    """An operator has no timings to work with, or nothing of it is asked for: a run over all operators leaves it out."""
