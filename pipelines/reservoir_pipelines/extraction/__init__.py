"""The stage ``extract``: one frozen forward pass, whose pooled hidden states are cached."""
