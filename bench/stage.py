"""The stage: two servers, the databases the cases need, and helpers.

One publisher and one subscriber serve all runs.  Each run has a fresh copy of
a database with the tables, on a subscriber that has just been started: with
the library for reuse_sync, without it for the built-in way.  So the pool is
cold, and the built-in way is the stock server's.
"""

import os
import subprocess

from cases import BUILTIN, OURS
from servers import Server, wait_until

# The slots, senders and workers both ways need beside the stock settings.
PUBLISHER_SETTINGS = {
	'wal_level': 'logical',
	'max_replication_slots': 20,
	'max_wal_senders': 20,
	# a line per slot created, to count them by
	'log_replication_commands': 'on',
}
SUBSCRIBER_SETTINGS = {
	'max_replication_slots': 20,
	'max_worker_processes': 16,
	'max_logical_replication_workers': 10,
}

TABLE = '''(
	id bigint PRIMARY KEY,
	changed timestamptz NOT NULL,
	amount numeric(12,2) NOT NULL,
	name varchar(40)
)'''
ROWS = '''
	SELECT n, timestamptz '2026-01-01 00:00+00' + n * interval '1 second',
		mod(n, 100000) / 100.0, 'name of row ' || n
	FROM generate_series(1, %d) AS n'''

# While databases are made and copied; then everything is synced at once.
UNSAFE = {'fsync': 'off'}

LOAD_SCALE = 4
LOAD_CLIENTS = 4


def say(text):
	print(text, flush=True)


class Stage:
	def __init__(self, directory, bindir, proxy):
		self.directory = directory
		self.bindir = bindir
		self.proxy_program = proxy
		# Ports that only name sockets in our own directory
		self.publisher = Server('publisher', directory, bindir, 5431)
		self.subscriber = Server('subscriber', directory, bindir, 5432)
		self.helpers = []
		self.shapes = set()

	def start(self):
		for server, settings in (
				(self.publisher, PUBLISHER_SETTINGS),
				(self.subscriber, SUBSCRIBER_SETTINGS)):
			server.create(settings)
			server.restart(settings)

	def stop(self):
		self.end_helpers()
		self.subscriber.stop()
		self.publisher.stop()

	# --- databases ---

	def make_shape(self, case):
		"""The publisher's database, and what the subscriber's are copied from."""
		if case.shape in self.shapes:
			return
		say(f'making {case.title}')
		database = 'bench_' + case.shape
		self.publisher.restart({**PUBLISHER_SETTINGS, **UNSAFE})
		self.subscriber.restart({**SUBSCRIBER_SETTINGS, **UNSAFE})
		for server in (self.publisher, self.subscriber):
			server.sql('postgres', f'CREATE DATABASE "{database}"')
			if case.load:
				server.pgbench(database, '-i', '-q', '-I', 'dtGvp',
					'-s', str(LOAD_SCALE))
			server.sql(database, 'CREATE SCHEMA bench')
			# in pieces, for the sake of the lock table
			for first in range(1, case.tables + 1, 500):
				last = min(first + 499, case.tables)
				server.sql(database, f'''DO $$ BEGIN
					FOR i IN {first} .. {last} LOOP
						EXECUTE format('CREATE TABLE bench.%I {TABLE}', 't' || i);
					END LOOP; END $$''')
		self.publisher.sql(database,
			'''CREATE TABLE beat (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
				sent timestamptz NOT NULL DEFAULT clock_timestamp())''',
			'CREATE TABLE opened (id bigint)',
			'CREATE PUBLICATION bench FOR TABLES IN SCHEMA bench',
			'CREATE PUBLICATION beat FOR TABLE beat'
			+ (', pgbench_accounts, pgbench_branches, pgbench_history,'
				' pgbench_tellers' if case.load else ''))
		self.subscriber.sql(database,
			'''CREATE TABLE beat (id bigint PRIMARY KEY,
				sent timestamptz NOT NULL,
				received timestamptz NOT NULL DEFAULT clock_timestamp())''')
		if case.rows:
			self.publisher.sql(database, f'''DO $$ BEGIN
				FOR i IN 1 .. {case.tables} LOOP
					EXECUTE format('INSERT INTO bench.%I {ROWS.replace("'", "''")
						% case.rows}', 't' || i);
					COMMIT;
				END LOOP; END $$''')
		for server in (self.publisher, self.subscriber):
			server.sql(database, 'VACUUM (ANALYZE)')
		self.publisher.restart(PUBLISHER_SETTINGS)
		self.shapes.add(case.shape)

	def drop_shape(self, case):
		self.subscriber.sql('postgres', 'DROP DATABASE IF EXISTS run WITH (FORCE)')
		for server in (self.publisher, self.subscriber):
			server.sql('postgres',
				f'DROP DATABASE "bench_{case.shape}" WITH (FORCE)')
		self.shapes.remove(case.shape)

	def conninfo(self, case, port):
		return (f"host={self.directory} port={port} user=postgres"
			f" dbname=bench_{case.shape}")

	def start_subscriber(self, case, side, sync_workers, extra=()):
		"""A server just started, with a database no run has touched."""
		settings = dict(SUBSCRIBER_SETTINGS)
		if side == BUILTIN:
			settings['max_sync_workers_per_subscription'] = sync_workers
		elif side == OURS:
			settings['shared_preload_libraries'] = 'reuse_sync'
			settings.update(case.settings)
			settings.update(extra)
		self.subscriber.restart({**SUBSCRIBER_SETTINGS, **UNSAFE})
		self.subscriber.sql('postgres',
			'DROP DATABASE IF EXISTS run WITH (FORCE)',
			f'CREATE DATABASE run TEMPLATE "bench_{case.shape}"'
			' STRATEGY file_copy')
		self.subscriber.restart(settings)
		if side == OURS:
			self.subscriber.sql('run', 'CREATE EXTENSION reuse_sync')

	# --- processes beside the servers ---

	def start_proxy(self, case):
		"""The proxy of a case; returns the port that names its socket."""
		port = self.publisher.port + 10
		path = os.path.join(self.directory, f'.s.PGSQL.{port}')
		if os.path.exists(path):
			os.unlink(path)
		self.helper([self.proxy_program, path,
			os.path.join(self.directory, f'.s.PGSQL.{self.publisher.port}'),
			str(case.delay_ms)])
		wait_until(lambda: os.path.exists(path), 'the proxy', 10)
		return port

	def helper(self, command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT):
		"""A process that is ended after the run, if not before."""
		process = subprocess.Popen(command, stdin=stdin,
			stdout=subprocess.PIPE, stderr=stderr, text=True)
		self.helpers.append(process)
		return process

	def end_helpers(self):
		for process in self.helpers:
			if process.poll() is None:
				process.terminate()
				process.communicate()
			elif process.stdout is not None:
				process.stdout.close()
		self.helpers = []
