"""One program per system: `python -m bench.peers.drivers.txoutbox_driver`, told what to do by lines of JSON.

None is named like the library that it drives, which type checkers would take for itself.
"""
