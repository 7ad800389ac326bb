"""``python -m reservoir_pipelines`` is the command ``reservoir``."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # python -m puts the current folder first on the import path, where a file typer.py would be executed.
        del sys.path[0]
    from reservoir_pipelines.cli import main

    main()
