"""A program that tries to make Postroom lose, invent or reorder messages: `python -m chaos --help`."""
