"""The stage ``extract``: one frozen forward pass, its pooled hidden states cached."""
