"""For applications that are written with a framework: one file each."""
