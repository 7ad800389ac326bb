"""The stage ``tune``: the search for the reservoirs that suit a data set."""
