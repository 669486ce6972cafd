"""Mutants of the source text: each is Duly with one thing removed or inverted, and the tests that must notice."""
