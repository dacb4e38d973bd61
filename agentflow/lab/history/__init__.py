"""What happened, from rows to English: entries, the story that they tell, sentences, and the table of faults.

Needs nothing but the standard library.
"""
