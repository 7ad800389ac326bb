"""What ``fit`` is made of: samples from columns, engines that sweep them, and the results."""
