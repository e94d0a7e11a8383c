"""The budget that a method needs: curves over replayed budgets, their bends and knees, searches, regret."""
