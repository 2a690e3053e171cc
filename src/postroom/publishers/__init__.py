"""Adapters to destinations, one file each; the relay finds them by the scheme of a URL."""
