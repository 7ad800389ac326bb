"""Images as sequences of patches, from scikit-learn or the publishers' files."""
