"""The stage ``reproduce``: tables and figures as data, their cells run one by one, each kept as it finishes."""
