"""The stage ``train``: runs in their folders."""
