"""``python -m reservoir_pipelines`` is the command ``reservoir``."""

from reservoir_pipelines.cli import main

main()
