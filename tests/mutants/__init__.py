"""Mutants of the source text: Duly with one thing taken out or turned round, and the tests that must notice."""
