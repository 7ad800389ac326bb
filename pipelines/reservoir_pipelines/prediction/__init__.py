"""What is done with a saved readout: ``predict``, ``explain`` and ``export``."""
