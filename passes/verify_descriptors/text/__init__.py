"""What the text of the PTX says: its instructions in groups, each compared with its operation."""
