"""The lessons: stages with their questions, the record of answers, and the judges of the exercises."""
