"""What happened, from the rows to English: entries, the story they tell together, the sentences. Standard library only."""
