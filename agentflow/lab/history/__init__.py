"""What happened, from rows to English: entries, the story that they tell, the words for it, and the table of faults.

Needs nothing but the standard library. What people read about an entry stands in `sentences`, the words in a picture's box
in `words`; why a write was refused is found in `story_reader`. A new fault is a row in `faults`: grammar, sentences and pictures
follow it. One that does not lose a call needs a method in `schedule/moves`, too. How often the explorer may spend it stands in
`explorer/search` and `explorer/explore`, and the independent checker must know its entry (`verify/history_rules`).
docs/architecture.md has it as a worked example.
"""
