"""The torture: see README.md."""
