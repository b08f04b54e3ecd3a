"""What is measured: the cases, and what is asked of them."""

from dataclasses import dataclass

BUILTIN = 'builtin'
OURS = 'reuse_sync'
FLOOR = 'floor'


@dataclass(frozen=True)
class Case:
	name: str
	title: str
	tables: int
	rows: int = 0             # in each table
	sides: tuple = (BUILTIN, OURS)
	pairs: int = 3            # in the full form
	quick: int = 0            # in the quick form; 0: not in it
	delay_ms: float = 0       # each way, on the connection of the subscription
	open_s: float = 0         # a transaction is open for so long from the start
	load: bool = False        # pgbench on the publisher, and subscribed to
	beats: int = 0            # go on measuring the delay for so many beats
	adds: bool = False        # to a subscription that exists, else a new one
	settings: tuple = ()      # of reuse_sync, as name and value

	@property
	def shape(self):
		"""Cases of the same shape have the same databases."""
		return f'{self.tables}x{self.rows}' + ('_load' if self.load else '')


CASES = [
	Case('empty-100', '100 empty tables', 100,
		sides=(BUILTIN, OURS, FLOOR), pairs=5),
	Case('empty-1000', '1,000 empty tables', 1000,
		sides=(BUILTIN, OURS, FLOOR), pairs=5, quick=5),
	Case('open-1000', '1,000 empty tables, a transaction open for 20 s', 1000,
		open_s=20),
	Case('rtt-1000', '1,000 empty tables, 10 ms away', 1000, delay_ms=10),
	Case('load-1000',
		'1,000 empty tables, pgbench running, a transaction open for 20 s', 1000,
		load=True, open_s=20),
	Case('rows-1000', '1,000 tables of 1,000 rows', 1000, 1000,
		sides=(BUILTIN, OURS, FLOOR), pairs=5),
	Case('beat-500', '500 empty tables added, pgbench running', 500,
		load=True, beats=1500, adds=True),
	Case('empty-4000', '4,000 empty tables', 4000,
		sides=(BUILTIN, OURS, FLOOR)),
	Case('empty-10000', '10,000 empty tables', 10000, sides=(OURS, FLOOR)),
	Case('memory-10000', '10,000 empty tables, a single worker', 10000,
		sides=(OURS,), pairs=1, settings=(('reuse_sync.max_workers', '1'),)),
	Case('big-5m', 'one table of 5,000,000 rows', 1, 5000000,
		sides=(BUILTIN, OURS, FLOOR), pairs=7),
]

BY_NAME = {case.name: case for case in CASES}

# By which the quick form finds the better number of sync workers
QUICK_CALIBRATION = BY_NAME['empty-100']
