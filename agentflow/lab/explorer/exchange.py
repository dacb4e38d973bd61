"""States that are one when lanes are exchanged: what A has done and B has not is no other story than the other way round.

The engine compares workers' names and never reads them, so a schedule and its mirror image go on alike, move by move. The state
that is reached first stands for its images, with its own places and rows; nothing is played or asked for an image.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from itertools import permutations
from typing import Any

from ...engine import Engine
from ..schedule.grammar import Setting
from .replayed_worker import Place, is_known
from .transitions import World

DEAD = -1
_NAMED_IN = (
    "lease_owner",
    "held_by",
    "row_owner",
    "worker",
)  # columns, and members of a detail, that hold a worker's name


class Exchange:
    """Gives each state a key that its images under every exchange of `lanes` share, and no other state.

    Names are exchanged where they are names: in the columns of rows and answers that hold one. A learner's data that looks like
    one is data. What names make different in another way is not exchanged: see `applies`.
    """

    def __init__(self, world: World, lanes: tuple[str, ...]) -> None:
        self.world = world
        self._orders = [
            (order, {lanes[old]: lanes[new] for new, old in enumerate(order)})
            for order in permutations(range(len(lanes)))
        ]
        self._numbers: dict[Hashable, int] = {}  # of what is equal under an exchange
        self._rows_known: dict[tuple[int, int], int] = {}
        self._places_known: dict[tuple[int, int], int] = {}

    @staticmethod
    def applies(engine: Engine, setting: Setting) -> bool:
        """Whether names are only compared: by the real engine and those of the catalogue, with answers that hold no name."""
        return is_known(engine) and (setting.model == "steady" or setting.names == "shared")

    def key(self, rows: int, places: tuple[int, ...], *spent: int) -> Hashable:
        """The least of a state's images."""
        return min(self._image(rows, places, number) for number in range(len(self._orders))), spent

    def _image(self, rows: int, places: tuple[int, ...], number: int) -> tuple[int, ...]:
        order, _ = self._orders[number]
        stand = (DEAD if places[old] == DEAD else self._place(places[old], number) for old in order)
        return self._rows(rows, number), *stand

    def _rows(self, rows: int, number: int) -> int:
        known = self._rows_known.get((rows, number))
        if known is None:
            workflows = [{**row, **self._renamed(row, number)} for row in self.world.cache.rows(rows).workflows]
            tables = json.loads(self.world.cache.text(rows)) | {"workflows": workflows}
            known = self._rows_known[rows, number] = self._number("rows", json.dumps(tables))
        return known

    def _place(self, place: int, number: int) -> int:
        known = self._places_known.get((place, number))
        if known is None:
            came = self._came(self.world.player.places[place], number)
            known = self._places_known[place, number] = self._number("place", came)
        return known

    def _came(self, place: Place, number: int) -> Hashable:
        """How the place was reached, which decides everything about it: from which, by which answer."""
        if place.came is None:
            return self._name(place.program, number)
        before, key, how = place.came
        return self._place(before, number), self._answer(key, number), how

    def _answer(self, key: str, number: int) -> str:
        if key[0] != "[" or not any(f'"{lane}.' in key for lane in self._orders[0][1]):
            return key
        rows: Iterable[Mapping[str, Any]] = json.loads(key)
        return json.dumps([{**row, **self._renamed(row, number)} for row in rows])

    def _renamed(self, row: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {column: self._name(row[column], number) for column in _NAMED_IN if isinstance(row.get(column), str)}

    def _name(self, name: str, number: int) -> str:
        lane, dot, start = name.partition(".")
        return f"{self._orders[number][1].get(lane, lane)}{dot}{start}"

    def _number(self, *what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))
