"""The stage ``pretrain``: language models made from a random start, and compared."""
