"""What consumers get from their clients, as a `Received`: one tiny file per broker.

No client is imported: messages are known by what they have. What has headers and bytes is read by `postroom.received`.
"""
