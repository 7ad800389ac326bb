"""Uses of a saved readout: ``predict``, ``explain`` and ``export``."""
