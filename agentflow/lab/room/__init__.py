"""The control room: a controller, what it shows, and the one widget with its buttons.

A click: `widget`, `clicks` (does it count?), `controller`, and on to a stepper of `lab/schedule`. Back, since the
stepper tells the controller (`watch`): `observed` reads what came of it, `recording` keeps it as a frame, `scene` says what is to
be shown, `view` turns that into HTML with the timeline in it, and `widget`, told by the controller (`changed`), puts it on the
screen, where `room.js` scrolls to it. `messages` has the words for trouble.
"""
