"""The one exception that means: the user's input was at fault, and here is what to do."""


class InputError(ValueError):
    """Bad input: a name, a file, a shape or a setting.

    The message is one line that says what is wrong, where, and what to do. The command line prints it alone and exits
    with code 2; it never shows a traceback for it.
    """
