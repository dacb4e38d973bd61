"""The laboratory: everything that stops, crashes, shows and checks the engine, through its one hook.

`laboratory` opens a database of one's own. A `schedule` is one line of text; `stepper` plays it on `lanes` (each a worker,
`body`, in a thread or a process), `playbook` has the famous ones, `capsule` keeps what came of one. `timeline` draws a
history, `room` has the buttons. `race` lets workers compete for one queue, `plots` shows what people look at, `broken` has
engines without a guard. `checks` proves, `crashes` loses a worker at a boundary, `soak` does that to hundreds. The engine
never imports any of them. Read `schedule` next.
"""
