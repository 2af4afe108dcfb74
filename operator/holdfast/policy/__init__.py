"""Pure decisions: snapshot and memory in, decision and reason out."""
