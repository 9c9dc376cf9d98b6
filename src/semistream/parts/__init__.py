"""The components the papers' operators are built from, each charging its bytes to the budget."""
