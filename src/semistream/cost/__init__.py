"""What a join will cost before it runs, and what its counts cost after: formulas, unit costs, and a clock."""
