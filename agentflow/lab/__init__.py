"""The laboratory: everything that stops, crashes, shows and checks the engine, through its one hook.

`laboratory` opens a database of one's own, `stepper` moves workers (each a `lane`) one transaction at a time, `look`
shows rows as tables and sentences, `panel` has the buttons, `checks` proves. `processes` starts and kills real worker
processes, `crashes` loses a worker at a boundary, `soak` does that to hundreds. `race` lets
them compete for one queue, `frames` reads tables from the rows, and `plots` draws those. The engine never imports any of
them. Read `stepper` next.
"""
