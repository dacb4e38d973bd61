"""The laboratory: everything that stops, crashes, shows and checks the engine, through its one hook.

Rooms: `laboratory` (a database of one's own), `stepper` (workers that move when told), `look` (rows as tables and
sentences), `panel` (buttons), `checks` (questions and proofs). The engine never imports them. Read `stepper` next.
"""
