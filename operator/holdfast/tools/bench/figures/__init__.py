"""What the records of requests amount to: formulas, and the results of a run and of a sweep."""
