"""What a command asks for: its options checked, and the runs that they lead to."""
