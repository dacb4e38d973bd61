"""What a cell prints and needs: tables, notes, a live API, another process, the place of a learner's own code."""
