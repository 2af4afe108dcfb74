"""HTTP ports whose clients have bounds: connections, bytes and time; what a port refuses is counted, not logged."""
