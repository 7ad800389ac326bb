"""Pretraining: corpora, language model, recipe and steps."""
