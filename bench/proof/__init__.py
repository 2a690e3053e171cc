"""The page of evidence: every run that it is made of, what each said, and the page itself. `python -m bench.proof`."""
