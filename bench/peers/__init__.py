"""Postroom beside other systems on one PostgreSQL, each in an environment and a process of its own."""
