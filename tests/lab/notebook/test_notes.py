"""Sentences on a page: what they hold is escaped, and code looks like code."""

from agentflow.lab.notebook.notes import Notes, as_html


def test_what_stands_between_backticks_is_code_and_everything_is_escaped() -> None:
    assert as_html("`a < b` & <b>") == "<code>a &lt; b</code> &amp; &lt;b&gt;"
    assert as_html("one ` alone, and `` empty") == "one ` alone, and `` empty"


def test_each_sentence_is_a_paragraph_and_the_text_is_as_it_was_written() -> None:
    notes = Notes(["Run `stage.again()`.", "Then the rest."])
    assert notes.to_html() == "<p><b>Run <code>stage.again()</code>.</b></p><p>Then the rest.</p>"
    assert str(notes) == "Run `stage.again()`.\nThen the rest."
