"""What adapters to brokers share, none of it I/O: envelopes, templates for names, the options of URLs."""
