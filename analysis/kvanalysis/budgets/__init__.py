"""Which budget a method needs: curves of replayed budgets, their bends and knees, searches, regret."""
