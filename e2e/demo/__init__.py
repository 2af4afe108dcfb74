"""The demonstration behind `make demo`: a recorded load triples on a real cluster and the objective is kept."""
