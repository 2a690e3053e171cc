"""Adapters to databases, one file each."""
