"""The status page: the newest tick and how it came there, for people with a browser; it decides and writes nothing."""
