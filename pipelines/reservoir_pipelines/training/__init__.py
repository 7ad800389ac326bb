"""The stage ``train``, and the folders that it writes."""
