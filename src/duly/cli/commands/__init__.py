"""The commands, one module for each, named as the command."""
