"""The one error a user can cause."""


class InputError(ValueError):
    """Bad input from outside: one line that says what is wrong, where, and what to do.

    Stages print it and exit with status 2; anything else that escapes is a fault of this program.
    """
