"""The floor: a plain copy of the same tables."""

import os
import time

from servers import Failure


class Floor:
	"""The copy alone: pairs of psql, one reading and one writing."""

	def __init__(self, stage, case):
		self.stage = stage
		self.case = case
		self.publisher = stage.publisher
		self.subscriber = stage.subscriber

	def wal_position(self):
		return int(self.subscriber.sql('run',
			"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

	def script(self, number, of):
		name = os.path.join(self.stage.directory, f'floor.{number}.sql')
		with open(name, 'w', encoding='ascii') as f:
			f.write('\\echo BEGIN;\n')
			for i in range(number, self.case.tables + 1, of):
				f.write(f'\\echo COPY bench.t{i} FROM stdin;\n'
					f"COPY bench.t{i} TO STDOUT;\n\\echo '\\\\.'\n")
			f.write('\\echo COMMIT;\n')
		return name

	def measure(self, row):
		pipes = min(2, self.case.tables)
		scripts = [self.script(n, pipes) for n in range(1, pipes + 1)]
		for server in (self.publisher, self.subscriber):
			server.sql('postgres', 'CHECKPOINT')
		wal = self.wal_position()
		cpu = (self.publisher.cpu(), self.subscriber.cpu())
		start = time.time()
		running = []
		for script in scripts:
			reader = self.stage.helper(
				self.publisher.psql_command('bench_' + self.case.shape, '-f', script),
				stderr=None)
			writer = self.stage.helper(
				self.subscriber.psql_command('run'), stdin=reader.stdout)
			reader.stdout.close()
			reader.stdout = None
			running += [reader, writer]
		for process in running:
			output = process.communicate()[0]
			if process.returncode != 0:
				raise Failure(f'the plain copy failed:\n{output or ""}')
		row['seconds_r'] = round(time.time() - start, 3)
		row['cpu_publisher'] = round(self.publisher.cpu() - cpu[0], 2)
		row['cpu_subscriber'] = round(self.subscriber.cpu() - cpu[1], 2)
		row['wal_bytes'] = self.wal_position() - wal
